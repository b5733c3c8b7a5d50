"""What is refused before the brain hears of it."""

from __future__ import annotations

from ray_multicluster_scheduler.app.client_api.options import check_priority
from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.identifier_checks import check_words
from ray_multicluster_scheduler.common.model import TaskDescription
from ray_multicluster_scheduler.control_plane.runtime.interface import ControlPlane


def check_acceptable(runtime: ControlPlane, task: TaskDescription) -> None:
    """Raises ConfigurationError if its id or the like is no line, if its owner may not ask for such a priority, or if
    it is to come after an actor."""
    check_words(task)
    check_priority(runtime, task)
    if task.after:
        _refuse_to_wait_for_actors(runtime, task)


def _refuse_to_wait_for_actors(runtime: ControlPlane, task: TaskDescription) -> None:
    """Nothing can wait for the success of an actor: it succeeds only when it leaves by itself, which most never do."""
    for one in task.after:
        known = runtime.item(one) or runtime.item(one.rpartition(".")[0])  # the latter for a member of a gang
        if known is not None and known.task.serves:
            what = "an actor" if known.task.gang is None else "a gang of actors"
            raise ConfigurationError(
                f"after names {one}, which is {what}: that is not over when it is ready, but when it has left.",
                task_id=task.id,
                next_step="wait for the actor with ready(), or give the handle of a call as an argument",
            )
