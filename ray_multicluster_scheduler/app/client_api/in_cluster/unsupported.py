"""Refuses verbs and public names that do not exist inside a cluster: it has no queue of ours and no fleet."""

from __future__ import annotations

from typing import Any, NoReturn

from ray_multicluster_scheduler.app.client_api.in_cluster import runtime_context
from ray_multicluster_scheduler.common.exception import ConfigurationError, SchedulerError


def no_queue(verb: str) -> NoReturn:
    """Raises ConfigurationError."""
    cluster = runtime_context.item().cluster
    raise ConfigurationError(
        f"{verb} cannot be used inside of cluster {cluster!r}: what is submitted there waits with Ray.",
        cluster=cluster,
        next_step="submit it when it may start; or submit it from outside, where it waits in our queue",
    )


def no_fleet(verb: str) -> NoReturn:
    """Raises ConfigurationError."""
    cluster = runtime_context.item().cluster
    raise ConfigurationError(
        f"{verb} cannot be used inside of cluster {cluster!r}: the fleet is looked after from outside.",
        cluster=cluster,
        next_step="do it in the program that has the scheduler, or with `rmcs clusters` beside it",
    )


class HandleWithoutQueue:
    """A handle of something that Ray itself queues."""

    __slots__ = ()

    def hold(self, reason: str = "") -> None:
        """Ray holds nothing back. Raises ConfigurationError."""
        no_queue("hold")

    def release(self) -> None:
        """Ray holds nothing back. Raises ConfigurationError."""
        no_queue("release")

    def set_priority(self, priority: int) -> None:
        """Ray knows no priorities. Raises ConfigurationError."""
        no_queue("set_priority")


class SchedulerWithoutQueue:
    """The same for the scheduler. Each raises ConfigurationError."""

    def hold(self, item: Any, reason: str = "") -> None:
        no_queue("hold")

    def release(self, item: Any) -> None:
        no_queue("release")

    def set_priority(self, item: Any, priority: int) -> None:
        no_queue("set_priority")

    def pause_queue(self, cluster: str | None = None, owner: str | None = None, reason: str = "") -> None:
        no_queue("pause_queue")

    def owner_limits(self, owner: str) -> dict[str, Any]:
        no_queue("owner_limits")

    def set_owner_limits(self, owner: str, **limits: Any) -> None:
        no_queue("set_owner_limits")

    def reset_owner_limits(self, owner: str) -> None:
        no_queue("reset_owner_limits")

    def resume_queue(self, cluster: str | None = None, owner: str | None = None) -> None:
        no_queue("resume_queue")

    def declare_dead(self, cluster: str, reason: str = "", *, force: bool = False) -> list[str]:
        no_fleet("declare_dead")

    def cordon(self, cluster: str) -> None:
        no_fleet("cordon")

    def uncordon(self, cluster: str) -> None:
        no_fleet("uncordon")

    def drain(self, cluster: str, timeout: float | None = None) -> bool:
        no_fleet("drain")

    def events(self, **wanted: Any) -> NoReturn:
        no_fleet("events")

    def on_event(self, hear: Any, **wanted: Any) -> NoReturn:
        no_fleet("on_event")


def stand_in(name: str, error: ImportError) -> type:
    """A class of this name that says, when it is used, why it is not there."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise SchedulerError(
            f"{name} cannot be used inside of a cluster: {error}.",
            next_step="use it in the program outside; the verbs (submit_task, submit_actor, …) work inside, too",
        ) from error

    return type(name, (), {"__new__": refuse, "__doc__": f"{name} is not there inside of a cluster."})
