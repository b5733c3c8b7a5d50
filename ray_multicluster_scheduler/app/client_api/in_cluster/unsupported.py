"""Refuses the verbs and public names that are not supported inside a cluster, which has no queue of ours and no
fleet."""

from __future__ import annotations

from typing import Any, NoReturn

from ray_multicluster_scheduler.app.client_api.in_cluster import runtime_context
from ray_multicluster_scheduler.common.exception import ConfigurationError, SchedulerError


def refuse_queue_verb(verb: str) -> NoReturn:
    """Raises ConfigurationError."""
    _refuse(
        verb,
        "Ray queues the items there",
        "submit the item when it may start, or from outside, where it waits in our queue",
    )


def refuse_fleet_verb(verb: str) -> NoReturn:
    """Raises ConfigurationError."""
    _refuse(
        verb,
        "the fleet is managed from outside",
        "call it in the program that has the scheduler, or use `rmcs clusters`",
    )


def _refuse(verb: str, reason: str, next_step: str) -> NoReturn:
    cluster = runtime_context.item().cluster
    raise ConfigurationError(
        f"{verb} cannot be used inside cluster {cluster!r}: {reason}.", cluster=cluster, next_step=next_step
    )


class UnsupportedVerbs:
    """Verbs of UnifiedScheduler that do not work inside a cluster. Each raises ConfigurationError."""

    def hold(self, item: Any, reason: str = "") -> None:
        refuse_queue_verb("hold")

    def release(self, item: Any) -> None:
        refuse_queue_verb("release")

    def set_priority(self, item: Any, priority: float) -> None:
        refuse_queue_verb("set_priority")

    def pause_queue(self, cluster: str | None = None, owner: str | None = None, reason: str = "") -> None:
        refuse_queue_verb("pause_queue")

    def owner_limits(self, owner: str) -> dict[str, Any]:
        refuse_queue_verb("owner_limits")

    def set_owner_limits(self, owner: str, **limits: Any) -> None:
        refuse_queue_verb("set_owner_limits")

    def reset_owner_limits(self, owner: str) -> None:
        refuse_queue_verb("reset_owner_limits")

    def resume_queue(self, cluster: str | None = None, owner: str | None = None) -> None:
        refuse_queue_verb("resume_queue")

    def deploy(self, cls: Any, *args: Any, **options: Any) -> NoReturn:
        refuse_fleet_verb("deploy")

    def declare_dead(self, cluster: str, reason: str = "", *, force: bool = False) -> list[str]:
        refuse_fleet_verb("declare_dead")

    def cordon(self, cluster: str, reason: str = "") -> None:
        refuse_fleet_verb("cordon")

    def uncordon(self, cluster: str) -> None:
        refuse_fleet_verb("uncordon")

    def drain(self, cluster: str, timeout: float | None = None, reason: str = "") -> bool:
        refuse_fleet_verb("drain")

    def events(self, **wanted: Any) -> NoReturn:
        refuse_fleet_verb("events")

    def on_event(self, hear: Any, **wanted: Any) -> NoReturn:
        refuse_fleet_verb("on_event")


def placeholder_class(name: str, error: ImportError) -> type:
    """A class in place of a public name that cannot be imported inside a cluster, so that ``import *`` works: using it
    raises SchedulerError with the reason."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise SchedulerError(
            f"{name} cannot be used inside a cluster: {error}.",
            next_step="use it in the program outside; the verbs (submit_task, submit_actor, …) work inside, too",
        ) from error

    return type(name, (), {"__new__": refuse, "__doc__": f"{name} is not supported inside a cluster."})
