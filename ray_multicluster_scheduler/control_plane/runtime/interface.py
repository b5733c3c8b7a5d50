"""ControlPlane: what handles and schedulers need of whoever drives the work, in this process or in a service."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ray_multicluster_scheduler.common.clock import Clock
from ray_multicluster_scheduler.common.model import SchedulingDecision, TaskDescription
from ray_multicluster_scheduler.control_plane.config import Settings
from ray_multicluster_scheduler.control_plane.config.settings import OwnerLimits
from ray_multicluster_scheduler.control_plane.runtime.item import Item, Outcome, Promise
from ray_multicluster_scheduler.scheduler.lifecycle.events import Event
from ray_multicluster_scheduler.scheduler.scheduler_core.payload_cache import PayloadCache

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.runtime.arguments import Arguments
    from ray_multicluster_scheduler.control_plane.runtime.call_queue import CallPromise, CallQueue
    from ray_multicluster_scheduler.control_plane.runtime.event_iterator import EventIterator
    from ray_multicluster_scheduler.scheduler.scheduler_core.events.event import EventFilter


class Output(Protocol):
    """What tasks and actors print."""

    def text(self, task_id: str, attempt: int, stream: str | None = None) -> str:
        """All that is kept of one attempt's output."""

    def follow(self, task_id: str, look: Callable[[], tuple[int, bool]]) -> Iterator[str]:
        """The output as it comes; ``look`` tells the newest attempt, and whether it is over."""


class ControlPlane(ABC):
    """Safe from any thread. Whoever comes after :meth:`close` gets a SchedulerError, but for what is known already."""

    control_plane: str
    """In the ids of all that is submitted here: nobody else gives such ones."""
    clock: Clock
    payload_cache: PayloadCache
    output: Output
    closed: bool
    settings: Settings
    lives_on: bool = False
    """Does what was accepted go on after the end of this program?"""

    # ---- items

    @abstractmethod
    def submit(self, task: TaskDescription, arguments: Arguments | None = None) -> Item:
        """Hand an item over; returns at once. A repeated id or key is the first item again, and so is one with the
        content of an item that is neither over nor asked to end."""

    @abstractmethod
    def throttle(self) -> None:
        """For whoever submits many."""

    @abstractmethod
    def item(self, task_id: str) -> Item | None:
        """The item, while it is in progress here, can be asked for again, or somebody holds its handle."""

    @abstractmethod
    def accepted_item(self, task_id: str) -> Item | None:
        """The same, once it is accepted or over."""

    @abstractmethod
    def check_known(self, task_id: str) -> None:
        """Raises UnknownItemError for an id that was never issued."""

    @abstractmethod
    def scheduled_item_id(self, task_id: str) -> str:
        """The item that is meant: of a gang's member it is the gang."""

    @abstractmethod
    def is_call(self, item_id: str) -> bool:
        """Is this the id of a call of an actor's method?"""

    @abstractmethod
    def calls_of(self, actor: Item) -> CallQueue:
        """A queue for the calls of this actor: there is to be one for each."""

    @abstractmethod
    def cancel_call(self, call_id: str, *, force: bool) -> None:
        """Ask for the end of a call; nothing happens to one that was answered."""

    @abstractmethod
    def explain_call(self, call: CallPromise) -> dict[str, Any]:
        """Why it is where it is."""

    @abstractmethod
    def unfinished(self) -> list[Item]:
        """What was submitted here and is not over, oldest first."""

    @abstractmethod
    def cancel(self, task_id: str, reason: str, *, force: bool) -> None:
        """Ask for its end; nothing happens to what is over."""

    @abstractmethod
    def post_user_event(self, event: Event) -> None:
        """What a user wants: hold, release, another priority, a paused queue, a cordon."""

    @abstractmethod
    def when_done(self, item: Promise, work: Callable[[], object]) -> None:
        """Run user code once the item is over, on a thread of its own kind."""

    @abstractmethod
    def kept_value(self, outcome: Outcome, timeout: float | None = None) -> bytes:
        """The pickled value of one that was left in its cluster. Raises ResultLostError, and TaskTimeoutError. Blocks:
        not on the loop."""

    # ---- what is known

    @abstractmethod
    def explain(self, task_id: str) -> dict[str, Any]:
        """Why an item is where it is. Raises UnknownItemError."""

    @abstractmethod
    def plan(self, task: TaskDescription) -> SchedulingDecision:
        """Where it would go now; every cluster is asked first."""

    @abstractmethod
    def job_info(self, job_id: str) -> dict[str, Any]:
        """A job's face. Raises UnknownItemError."""

    @abstractmethod
    def job_rows(self) -> list[dict[str, Any]]:
        """Every job that was not forgotten, oldest first."""

    @abstractmethod
    def actor_rows(self) -> list[dict[str, Any]]:
        """Every actor that was not forgotten, oldest first."""

    @abstractmethod
    def job_log(self, job_id: str) -> str:
        """Output of a job's newest attempt."""

    @abstractmethod
    def follow_job_log(self, job_id: str) -> Iterator[str]:
        """A job's output as it comes, until the job is over."""

    @abstractmethod
    def events(self, wanted: EventFilter, since: int | None) -> EventIterator:
        """What happens, and what is known of what happened after the event with this number."""

    # ---- the fleet

    @abstractmethod
    def limits_of(self, owner: str, *, refresh: bool = False) -> OwnerLimits:
        """What this owner may have, as far as is known here; ``anew``: as it is now."""

    @property
    @abstractmethod
    def homes(self) -> Sequence[str]:
        """Home directories that a path of a user may begin with."""

    @abstractmethod
    def check_cluster(self, name: str) -> None:
        """Raises ConfigurationError for a cluster that is not there."""

    @abstractmethod
    def cluster_rows(self, refresh: Sequence[str] | None = ()) -> list[dict[str, Any]]:
        """One row per cluster; those to be refreshed are asked first, with None all of them."""

    @abstractmethod
    def node_rows(self, clusters: Sequence[str]) -> list[dict[str, Any]]:
        """The nodes of these clusters as they were last seen."""

    @abstractmethod
    def is_drained(self, cluster: str) -> bool | None:
        """Is nothing of ours there any more? None if it is open for new work."""

    @abstractmethod
    def declare_dead(self, cluster: str, reason: str, *, force: bool) -> list[str]:
        """Settle all that was there; returns the ids of those items."""

    # ---- the end

    @property
    @abstractmethod
    def in_forked_child(self) -> bool:
        """Are we in the child of a fork, where nothing of this runs?"""

    @abstractmethod
    def shutdown(self, *, drain: bool, interrupted: Callable[[], bool] = lambda: False) -> None:
        """End it, with ``drain`` after everything is over; see :meth:`UnifiedScheduler.shutdown`."""
