"""Checks of what callers pass, before the scheduler gets it: submitted items, and names and reasons in other verbs.

Also builds the error for an actor name that is in use.
"""

from __future__ import annotations

from ray_multicluster_scheduler.common.control_characters import check_identifiers
from ray_multicluster_scheduler.common.exception import ActorNameTakenError, ConfigurationError
from ray_multicluster_scheduler.common.model import TaskDescription
from ray_multicluster_scheduler.common.redaction import mask_text
from ray_multicluster_scheduler.control_plane.runtime.interface import ControlPlane


def check_submission(runtime: ControlPlane, task: TaskDescription) -> None:
    """Raises ConfigurationError for an identifier with control characters, a priority above the limit of the owner, or
    a dependency on an actor."""
    check_identifiers(task)
    check_priority(runtime, task)
    for one in task.after:  # an actor is refused, since most actors never exit by themselves
        known = runtime.item(one) or runtime.item(one.rpartition(".")[0])  # the latter for a member of a gang
        if known is not None and known.task.runs_actors:
            what = "an actor" if known.task.gang is None else "a gang of actors"
            raise ConfigurationError(
                f"after names {one}, which is {what}: that ends when it exits, not when it is ready.",
                task_id=task.id,
                next_step="wait for the actor with ready(), or give the handle of a call as an argument",
            )


def check_priority(runtime: ControlPlane, task: TaskDescription) -> None:
    """Raises ConfigurationError for a priority above the limit of its owner. The limit may be cached, so it is
    refreshed before a submission is refused."""
    for refresh in (False, True):
        most = runtime.limits_of(task.owner, refresh=refresh).max_priority
        if most is None or task.priority <= most:
            return
    raise ConfigurationError(
        f"priority is {task.priority}, and {task.owner} may request {most} at most.",
        task_id=task.id,
        next_step="use a lower priority, or change max_priority of that owner",
    )


def checked_reason(reason: object) -> str:
    """The reason given for a hold, pause or cancel, with secrets masked: every user may read it. Raises
    ConfigurationError if it is not text."""
    if not isinstance(reason, str):
        raise ConfigurationError(f"reason is {reason!r}.", next_step="give text, or leave it out")
    return mask_text(reason)


def checked_name(name: object, what: str) -> str:
    """The name of a cluster or an owner. Raises ConfigurationError if it is not text."""
    if not isinstance(name, str) or not name:
        raise ConfigurationError(f"{what} is {name!r}.", next_step=f"give the name of the {what} as text")
    return name


def name_taken(name: str, by: str, cluster: str | None) -> ActorNameTakenError:
    """The error for a new actor with the name of a living one: names are unique among those."""
    where = f" on {cluster}" if cluster else ""
    return ActorNameTakenError(
        f"There is a living actor {name!r} already: {by}{where}.",
        cluster=cluster,
        next_step=f"use it with get_actor({name!r}) or get_if_exists=True, kill it first, or take another name",
    )
