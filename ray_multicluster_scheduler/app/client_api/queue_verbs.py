"""QueueVerbs: the verbs of UnifiedScheduler that control the queue: hold, priority, paused queues, limits of owners."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal, TypeAlias, Unpack

from ray_multicluster_scheduler.app.client_api.actors.actor_handle import ActorHandle
from ray_multicluster_scheduler.app.client_api.handles.handle import Handle
from ray_multicluster_scheduler.app.client_api.options import LimitOptions
from ray_multicluster_scheduler.app.client_api.submission.submission import Submission
from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model.checks import valid_priority
from ray_multicluster_scheduler.control_plane.config.owner_limits import owner_limits_from
from ray_multicluster_scheduler.control_plane.config.settings import OwnerLimits
from ray_multicluster_scheduler.control_plane.runtime.input_checks import checked_name, checked_reason
from ray_multicluster_scheduler.control_plane.runtime.interface import ControlPlane
from ray_multicluster_scheduler.scheduler.lifecycle import events as scheduler_events

ItemRef: TypeAlias = str | Handle | ActorHandle


class QueueVerbs(ABC):
    """Base of UnifiedScheduler."""

    @abstractmethod
    def _started(self) -> tuple[ControlPlane, Submission]: ...

    @abstractmethod
    def _item(self, item: ItemRef, verb: str) -> tuple[ControlPlane, str]: ...

    def hold(self, item: ItemRef, reason: str = "") -> None:
        """Keep an item from starting until :meth:`release`; an attempt that was already sent continues. No effect on an
        ended item. Raises UnknownItemError."""
        runtime, task_id = self._item(item, "hold")
        runtime.post_user_event(scheduler_events.HoldRequested(task_id, checked_reason(reason)))

    def release(self, item: ItemRef) -> None:
        """Undo :meth:`hold`. Raises UnknownItemError."""
        runtime, task_id = self._item(item, "release")
        runtime.post_user_event(scheduler_events.ReleaseRequested(task_id))

    def set_priority(self, item: ItemRef, priority: float) -> None:
        """Change the priority with which an item waits; higher numbers go first. Raises UnknownItemError."""
        runtime, task_id = self._item(item, "set_priority")
        runtime.post_user_event(scheduler_events.PriorityChanged(task_id, valid_priority(priority)))

    def pause_queue(self, cluster: str | None = None, owner: str | None = None, reason: str = "") -> None:
        """Start no new items on a cluster, or of an owner, until :meth:`resume_queue`; running items continue.

        Raises ConfigurationError for an unknown cluster, or when not exactly one of the two is named.
        """
        runtime, what, name = self._queue(cluster, owner, "pause_queue")
        runtime.post_user_event(scheduler_events.QueuePaused(what, name, checked_reason(reason)))

    def resume_queue(self, cluster: str | None = None, owner: str | None = None) -> None:
        """Undo :meth:`pause_queue`."""
        runtime, what, name = self._queue(cluster, owner, "resume_queue")
        runtime.post_user_event(scheduler_events.QueueResumed(what, name))

    def owner_limits(self, owner: str) -> dict[str, Any]:
        """The limits of an owner, by the names that :meth:`set_owner_limits` takes."""
        return self._started()[0].limits_of(checked_name(owner, "owner"), refresh=True).model_dump()

    def set_owner_limits(self, owner: str, **limits: Unpack[LimitOptions]) -> None:
        """Replace the limits of an owner: ``weight``, ``max_queued``, ``max_running``, ``max_gpus``, ``max_priority``,
        or their defaults. Running items continue. With a service only admins may do this, and it survives restarts.
        Raises ConfigurationError."""
        self._change_limits(owner, owner_limits_from(limits))

    def reset_owner_limits(self, owner: str) -> None:
        """Undo :meth:`set_owner_limits`: the limits from the settings apply again."""
        self._change_limits(owner, None)

    def _change_limits(self, owner: str, limits: OwnerLimits | None) -> None:
        runtime, _ = self._started()
        runtime.post_user_event(scheduler_events.OwnerLimitsChanged(checked_name(owner, "owner"), limits))
        runtime.limits_of(owner, refresh=True)

    def _queue(
        self, cluster: str | None, owner: str | None, verb: str
    ) -> tuple[ControlPlane, Literal["cluster", "owner"], str]:
        if (cluster is None) == (owner is None):
            given = "neither a cluster nor an owner" if cluster is None else "both a cluster and an owner"
            raise ConfigurationError(f"{verb} was given {given}.", next_step='name one: cluster="…" or owner="…"')
        runtime, _ = self._started()
        if owner is not None:
            return runtime, "owner", checked_name(owner, "owner")
        runtime.check_cluster(checked_name(cluster, "cluster"))
        return runtime, "cluster", str(cluster)
