"""ControlPlane: the interface that handles and schedulers use, whether it runs in this process or in a service."""

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
    from ray_multicluster_scheduler.control_plane.runtime.event_iterator import EventIterator
    from ray_multicluster_scheduler.control_plane.runtime.item import CallPromise, CallQueue
    from ray_multicluster_scheduler.scheduler.scheduler_core.events.event import EventFilter


class Output(Protocol):
    """Access to the output of tasks and actors."""

    def text(self, task_id: str, attempt: int, stream: str | None = None) -> str:
        """All that is kept of one attempt's output."""

    def follow(self, task_id: str, progress: Callable[[], tuple[int, bool]]) -> Iterator[str]:
        """The output as it comes; ``progress`` returns the newest attempt, and whether the item is finished."""


class Children(Protocol):
    """Makes handles of actors that were created inside clusters."""

    def handle(self, child: Any, source: Promise) -> Any:
        """The handle of an actor in the value of ``source``."""


class ControlPlane(ABC):
    """Safe from any thread. After the shutdown, calls raise SchedulerError, except reads of what is known already."""

    control_plane: str
    """Its unique id, which is a part of every item id that it issues."""
    clock: Clock
    payload_cache: PayloadCache
    output: Output
    closed: bool
    settings: Settings
    children: Children
    """Set by the scheduler of the program."""
    outlives_program: bool = False
    """Whether accepted items continue after the end of this program."""

    # ---- items

    @abstractmethod
    def submit(self, task: TaskDescription, arguments: Arguments | None = None) -> Item:
        """Submit an item; returns immediately. A repeated id or key returns the first item, and so does the content of
        an item that is neither finished nor being cancelled."""

    @abstractmethod
    def throttle(self) -> None:
        """Slow down a caller that submits many items."""

    @abstractmethod
    def item(self, task_id: str) -> Item | None:
        """The item, if it is unfinished, retained, or referenced by a handle."""

    @abstractmethod
    def accepted_item(self, task_id: str) -> Item | None:
        """As :meth:`item`, but waits until it is accepted or finished."""

    @abstractmethod
    def check_known(self, task_id: str) -> None:
        """Raises UnknownItemError for an id that was never issued."""

    @abstractmethod
    def scheduled_item_id(self, task_id: str) -> str:
        """The id that the scheduler uses: for a member of a gang, the id of the gang."""

    @abstractmethod
    def is_call(self, item_id: str) -> bool:
        """Whether this is the id of a call of an actor method."""

    @abstractmethod
    def calls_of(self, actor: Item) -> CallQueue:
        """The queue for the calls of this actor; call it once for each actor."""

    @abstractmethod
    def cancel_call(self, call_id: str, *, force: bool) -> bool:
        """Request cancellation of a call. False: it was answered already, and is not changed."""

    @abstractmethod
    def explain_call(self, call: CallPromise) -> dict[str, Any]:
        """Explain the state of a call."""

    @abstractmethod
    def unfinished(self) -> list[Item]:
        """Unfinished items that were submitted here, oldest first."""

    @abstractmethod
    def cancel(self, task_id: str, reason: str, *, force: bool) -> bool:
        """Request cancellation. False: the item had ended already, and is not changed."""

    @abstractmethod
    def post_user_event(self, event: Event) -> None:
        """Post an event that a user requested: hold, release, another priority, a paused queue, a cordon."""

    @abstractmethod
    def when_done(self, item: Promise, work: Callable[[], object]) -> None:
        """Run a user callback once the item is finished, on a callback thread."""

    @abstractmethod
    def call_soon(self, work: Callable[..., object], *args: object) -> None:
        """Call it on the loop; from any thread, and whatever locks it holds."""

    @abstractmethod
    def call_later(self, seconds: float, work: Callable[[], object]) -> None:
        """The same after a while."""

    @abstractmethod
    def kept_value(self, outcome: Outcome, timeout: float | None = None) -> bytes:
        """The pickled value that is kept in a cluster. Raises ResultLostError, and TaskTimeoutError. Blocks:
        not on the loop."""

    # ---- queries

    @abstractmethod
    def explain(self, task_id: str) -> dict[str, Any]:
        """Explain the state of an item. Raises UnknownItemError."""

    @abstractmethod
    def plan(self, task: TaskDescription) -> SchedulingDecision:
        """Where it would be placed now, after a check of every cluster."""

    @abstractmethod
    def job_info(self, job_id: str) -> dict[str, Any]:
        """The status document of a job. Raises UnknownItemError."""

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
        """Live events, preceded by the stored ones after number ``since``."""

    # ---- the fleet

    @abstractmethod
    def limits_of(self, owner: str, *, refresh: bool = False) -> OwnerLimits:
        """The limits of an owner, possibly cached; ``refresh`` reads the present ones."""

    @property
    @abstractmethod
    def homes(self) -> Sequence[str]:
        """Home directories that a path of a user may begin with."""

    @abstractmethod
    def check_cluster(self, name: str) -> None:
        """Raises ConfigurationError for an unknown cluster."""

    @abstractmethod
    def cluster_rows(self, refresh: Sequence[str] | None = ()) -> list[dict[str, Any]]:
        """One row per cluster; the clusters to ``refresh`` are checked first (None: all)."""

    @abstractmethod
    def node_rows(self, clusters: Sequence[str]) -> list[dict[str, Any]]:
        """The nodes of these clusters as they were last seen."""

    @abstractmethod
    def is_drained(self, cluster: str) -> bool | None:
        """Whether no items are left there. None if it is open for new work."""

    @abstractmethod
    def declare_dead(self, cluster: str, reason: str, *, force: bool) -> list[str]:
        """Give up all items of a cluster; returns their ids."""

    # ---- the end

    @property
    @abstractmethod
    def in_forked_child(self) -> bool:
        """Whether this process is a forked child, in which the control plane does not run."""

    @abstractmethod
    def shutdown(self, *, drain: bool, interrupted: Callable[[], bool] = lambda: False) -> None:
        """Shut down, with ``drain`` after all items have finished; see :meth:`UnifiedScheduler.shutdown`."""
