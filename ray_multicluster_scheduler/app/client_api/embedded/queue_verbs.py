"""The part of a UnifiedScheduler that is about what waits: hold, release, other priorities, paused queues, limits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal, Unpack

from ray_multicluster_scheduler.app.client_api.actors.actor_handle import ActorHandle
from ray_multicluster_scheduler.app.client_api.embedded.submission import Submission
from ray_multicluster_scheduler.app.client_api.handles.handle import Handle
from ray_multicluster_scheduler.app.client_api.options import LimitOptions, item_id_of
from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model.checks import priority_of
from ray_multicluster_scheduler.control_plane.config.owner_limits import owner_limits_from
from ray_multicluster_scheduler.control_plane.runtime.interface import ControlPlane
from ray_multicluster_scheduler.control_plane.runtime.submission_checks import checked_reason
from ray_multicluster_scheduler.scheduler.lifecycle.events import (
    HoldRequested,
    OwnerLimitsChanged,
    PriorityChanged,
    QueuePaused,
    QueueResumed,
    ReleaseRequested,
)

Item = str | Handle | ActorHandle


class QueueVerbs(ABC):
    """Each is by id or handle, and is in effect once the control plane has handled it. Safe from any thread."""

    def hold(self, item: Item, reason: str = "") -> None:
        """Let it not start before :meth:`release`; what was sent to a cluster already goes on, and its next attempt is
        held. Nothing happens to what is over. Raises UnknownItemError."""
        runtime, task_id = self._item(item, "hold")
        runtime.tell(HoldRequested(task_id, checked_reason(reason)))

    def release(self, item: Item) -> None:
        """The end of :meth:`hold`. Raises UnknownItemError."""
        runtime, task_id = self._item(item, "release")
        runtime.tell(ReleaseRequested(task_id))

    def set_priority(self, item: Item, priority: int) -> None:
        """From now on it waits with this priority; higher numbers go first. Raises UnknownItemError."""
        runtime, task_id = self._item(item, "set_priority")
        runtime.tell(PriorityChanged(task_id, priority_of(priority)))

    def pause_queue(self, cluster: str | None = None, owner: str | None = None, reason: str = "") -> None:
        """Send nothing new to a cluster, or start nothing new of an owner, until :meth:`resume_queue`.

        What runs goes on.

        Raises ConfigurationError for a cluster that is not there, or when not exactly one of the two is named.
        """
        runtime, what, name = self._queue(cluster, owner, "pause_queue")
        runtime.tell(QueuePaused(what, name, checked_reason(reason)))

    def resume_queue(self, cluster: str | None = None, owner: str | None = None) -> None:
        """The end of :meth:`pause_queue`."""
        runtime, what, name = self._queue(cluster, owner, "resume_queue")
        runtime.tell(QueueResumed(what, name))

    def owner_limits(self, owner: str) -> dict[str, Any]:
        """What an owner may have now, by the names that :meth:`set_owner_limits` takes."""
        runtime, name = self._owner(owner)
        return runtime.limits_of(name, anew=True).model_dump()

    def set_owner_limits(self, owner: str, **limits: Unpack[LimitOptions]) -> None:
        """These limits hold for an owner instead of those in the settings, when this returns. They are all that it has:
        what is not named is as it is by default. What runs goes on. With a service it is for admins, and outlives
        restarts.

        Raises ConfigurationError for what are no limits.
        """
        wanted = owner_limits_from(limits)
        runtime, name = self._owner(owner)
        runtime.tell(OwnerLimitsChanged(name, wanted))
        runtime.limits_of(name, anew=True)

    def reset_owner_limits(self, owner: str) -> None:
        """The end of :meth:`set_owner_limits`: those in the settings hold again."""
        runtime, name = self._owner(owner)
        runtime.tell(OwnerLimitsChanged(name, None))
        runtime.limits_of(name, anew=True)

    @abstractmethod
    def _started(self) -> tuple[ControlPlane, Submission]:
        """The scheduler that these verbs are part of has it."""

    @abstractmethod
    def _that_knows(self, item_id: str) -> ControlPlane:
        """So has it this. Raises UnknownItemError."""

    def _item(self, item: Item, verb: str) -> tuple[ControlPlane, str]:
        task_id = item_id_of(item, verb)
        if isinstance(item, Handle):
            return item._runtime, task_id
        if isinstance(item, ActorHandle):
            return item._rmcs_runtime, task_id
        runtime = self._that_knows(task_id)
        if runtime.is_call(task_id):
            raise ConfigurationError(
                f"{task_id} is a call of an actor's method, which waits with its actor and not in a queue.",
                task_id=task_id,
                next_step=f"use {verb} with items: tasks, actors and jobs",
            )
        task_id = runtime.whole_id(task_id)
        if runtime.settled(task_id) is None:
            runtime.check_known(task_id)
        return runtime, task_id

    def _owner(self, owner: object) -> tuple[ControlPlane, str]:
        if not isinstance(owner, str) or not owner:
            raise ConfigurationError(f"owner is {owner!r}.", next_step="give the owner's name as text")
        return self._started()[0], owner

    def _queue(
        self, cluster: str | None, owner: str | None, verb: str
    ) -> tuple[ControlPlane, Literal["cluster", "owner"], str]:
        if (cluster is None) == (owner is None):
            given = "neither a cluster nor an owner" if cluster is None else "both a cluster and an owner"
            raise ConfigurationError(f"{verb} was given {given}.", next_step='name one: cluster="…" or owner="…"')
        for key, name in (("cluster", cluster), ("owner", owner)):
            if name is not None and (not isinstance(name, str) or not name):
                raise ConfigurationError(f"{key} is {name!r}.", next_step=f"give the {key}'s name as text")
        runtime, _ = self._started()
        if cluster is not None:
            runtime.check_cluster(cluster)
            return runtime, "cluster", cluster
        return runtime, "owner", str(owner)
