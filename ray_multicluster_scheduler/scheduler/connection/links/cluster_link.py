"""ClusterLink: the protocol by which calls reach a cluster, independent of the carrier.

A link lives on the control plane's event loop. Its methods never block the loop; every event in the cluster is reported
to the :class:`LinkListener`, on the same loop.

Guarantees of every link:

* each call given to :meth:`ClusterLink.submit` gets exactly one ``finished``. If the cluster is lost, it is reported as
  soon as the attempt is *known* to be dead;
* ``accepted`` and ``started`` are reported at most once per call and never after ``finished``; neither is reported for
  calls of actor methods;
* after ``link_closed`` nothing is reported except ``finished`` for calls submitted later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from ray_multicluster_scheduler.common.model import FailureClass, ResourceSnapshot

Ahead = Literal["", "queue", "overlap"]
CallKey: TypeAlias = tuple[str, int]
"""Task id and attempt."""


@dataclass(frozen=True, slots=True)
class SharedObject:
    """A pickled value that several calls may use; it is sent once per connection."""

    digest: str
    data: bytes


@dataclass(frozen=True, slots=True)
class NewActor:
    """Makes a call the lifetime of an actor: ``started`` after its constructor, ``finished`` after its end.

    It ends as succeeded if it exited by itself, as cancelled if it was killed, otherwise as failed. ``ray_name`` is
    its name in our namespace of the cluster. ``placement`` had to be free to place it; it holds the call's
    ``resources``. A detached actor outlives its agent, and only such an actor is restarted by Ray. ``adopt`` finds a
    detached actor by name instead of creating it. ``asynchronous``: its class has ``async def`` methods, so all its
    methods run on an event loop.
    """

    ray_name: str
    placement: Mapping[str, float] = field(default_factory=dict)
    detached: bool = False
    adopt: bool = False
    max_restarts: int = 0
    max_concurrency: int | None = None
    asynchronous: bool = False


@dataclass(frozen=True, slots=True)
class MemberCall:
    """One task or actor of a gang. ``objects`` replace the ObjectArguments among its arguments."""

    name: str
    function_digest: str
    function: bytes
    arguments: bytes
    resources: Mapping[str, float]
    objects: Sequence[SharedObject] = ()
    asynchronous: bool = False


@dataclass(frozen=True, slots=True)
class NewGang:
    """Makes a call the lifetime of a gang: all members start together in one placement group, or none does.

    ``started`` is reported when all members run (actors: are ready), with their nodes in member order, separated by
    blanks. The one ``finished`` carries the pickled list of their values, or the first failure of a member; by then
    the other members have ended and the placement group is removed. A gang of actors ends when one of them ends.
    """

    strategy: str
    of: Literal["task", "actor"]
    members: Sequence[MemberCall]


@dataclass(frozen=True, slots=True)
class MethodCall:
    """Makes a call one of an actor method. Calls run in the order of ``number``, which counts from 0 without gaps per
    attempt of the actor, in any order of arrival. ``life`` numbers the control plane processes: a later process
    has a larger one and counts from 0 again; calls that arrived from an earlier process run first."""

    actor_id: str
    actor_attempt: int
    method: str
    number: int
    gang_id: str = ""
    """The gang that the actor is a member of, if any."""
    life: int = 0


@dataclass(frozen=True, slots=True)
class Call:
    """One attempt of one task, ready to send: all values that depend on the cluster are resolved.

    The gateway rewrites path arguments under one of ``homes`` to ``target_home`` when it unpickles them. ``objects``
    replace the ObjectArguments among the arguments.

    A call sent ``ahead`` (prefetched) has no slot yet. It waits in the gateway until one of our calls with the same
    ``resources`` ends and its slot moves to it (``moved``), or until :meth:`ClusterLink.start`. With "overlap" one such
    call per slot, or a few very short ones, may wait in Ray itself; with "queue" none may, because the cluster has free
    capacity that is not ours to use.
    """

    task_id: str
    attempt: int
    fence: int
    name: str
    function_digest: str
    function: bytes
    arguments: bytes
    resources: Mapping[str, float]
    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    homes: Sequence[str] = ()
    target_home: str | None = None
    objects: Sequence[SharedObject] = ()
    ahead: Ahead = ""
    short: bool = False
    """Known to be short: its start may be reported together with its end; otherwise it is reported at once."""
    actor: NewActor | None = None
    method: MethodCall | None = None
    keep: bool = False
    """A large value stays in the cluster until it is fetched."""
    streams: bool = False
    """It is a generator: calls of methods with reserved names (``common.several_returns``) read its values."""
    gang: NewGang | None = None
    """If set, function and arguments are those of the members, and the call's own are empty."""


@dataclass(frozen=True, slots=True)
class CallResult:
    """The end of a call. ``payload`` is the pickled value, or the pickled exception of user code.

    ``failure`` and ``error_type`` are None if it succeeded or was cancelled. ``took`` is the duration of user code in
    seconds, if it ran. ``actor_id`` is set for calls of actor methods. ``started_at`` and ``node_id`` are set if the
    start was not reported before. ``member`` is the failed member of a gang. ``kept`` is the size of a value that
    stayed in the cluster, with agent ``kept_by``.
    """

    task_id: str
    attempt: int
    status: Literal["succeeded", "failed", "cancelled"]
    payload: bytes | None = None
    failure: FailureClass | None = None
    error_type: str | None = None
    code: str = ""
    message: str = ""
    traceback: str = ""
    took: float | None = None
    actor_id: str | None = None
    started_at: float | None = None
    node_id: str | None = None
    member: int | None = None
    kept: int | None = None
    kept_by: str | None = None
    digest: str | None = field(default=None, compare=False)
    """Of the payload, if it is known: hashing a large one takes a while."""


@dataclass(frozen=True, slots=True)
class LinkInfo:
    """The agent's report about itself when it joined."""

    cluster: str
    carrier: Literal["agent", "dial_in", "ray_client"]
    protocol: int
    ray_version: str
    python_version: str
    session_id: str
    os: str
    arch: str
    job_id: str = ""
    lock_file: str = ""
    """See gateway/worker/process_lock.py; empty without one."""


class LinkListener(Protocol):
    """Receives the events of links (the ResultCollector). Called on the loop; must not block."""

    def link_up(self, info: LinkInfo) -> None: ...

    def link_down(self, cluster: str, sentence: str, silent_s: float = 0.0) -> None:
        """``silent_s``: the part of ``lost_after_s`` that has passed since the agent's lease was renewed."""

    def link_closed(self, cluster: str, sentence: str) -> None: ...

    def processes_dead(self, cluster: str, sentence: str) -> None:
        """The agent and all its workers are known to be dead. Reported before the ends of their calls."""

    def head_silent(self, cluster: str, silent_s: float) -> None:
        """The agent is connected, but the cluster's head has not answered it for ``silent_s``. Repeated until the next
        ``snapshot``."""

    def accepted(self, cluster: str, task_id: str, attempt: int) -> None: ...

    def started(self, cluster: str, task_id: str, attempt: int, at: float, node_id: str) -> None: ...

    def moved(self, cluster: str, ended: tuple[str, int], begun: tuple[str, int]) -> None:
        """The slot of an ended call moved to a call that was sent ahead. Reported before ``finished`` of either."""

    def output(self, cluster: str, task_id: str, attempt: int, stream: str, text: str) -> None:
        """Output of actor methods belongs to the actor."""

    def dropped(self, cluster: str, task_id: str, attempt: int, characters: int) -> None:
        """This many characters of its output were dropped because there was too much of it."""

    def finished(self, cluster: str, result: CallResult) -> None: ...

    def when_durable(self, action: Callable[[], object]) -> None:
        """Run ``action`` on the loop once all results reported so far are durable; at once without a store. Only then
        may the agent drop them."""

    def hold_until_delivered(self, call_id: str, action: Callable[[], object]) -> bool:
        """Called before the result of an actor method is reported. True: ``action`` runs on the loop when the caller
        has the result, and only then may the agent drop it. False: ``when_durable`` decides, as for other calls."""

    def snapshot(self, snapshot: ResourceSnapshot) -> None: ...


class ClusterLink(Protocol):
    """A way to run calls in one cluster."""

    @property
    def cluster(self) -> str: ...

    @property
    def agent(self) -> str:
        """The unique name of the agent at the other end."""

    @property
    def info(self) -> LinkInfo: ...

    @property
    def connected(self) -> bool:
        """Whether there is a connection now. Without one the link still takes calls and sends them later."""

    @property
    def idle_s(self) -> float:
        """Seconds since our last call ended; 0 while a call runs or a value of ours is kept there."""

    def submit(self, calls: Sequence[Call]) -> None:
        """Send a batch. Never raises for a lost cluster: each call then gets a ``finished``."""

    def adopt(self, task_id: str, attempt: int) -> None:
        """Take over a started call that the previous process gave to the same agent. If the agent does not know it, it
        is reported as lost."""

    def adopt_method(self, call_id: str, actor: tuple[str, int], output_owner: tuple[str, int]) -> None:
        """Take over a method call of ``actor`` that the previous process sent to the same agent, whether or not it
        arrived. Its result may be reported before this returns; if the agent does not know it, it is reported as lost.
        Its output belongs to ``output_owner``, the actor or its gang."""

    def cancel(self, task_id: str, attempt: int, *, force: bool) -> None:
        """Request cancellation; an actor is killed. Unknown or finished calls are ignored."""

    def start(self, task_id: str, attempt: int) -> None:
        """Give a slot to this call, which was sent ahead. Ignored if it has started."""

    def recall(self, task_id: str, attempt: int) -> None:
        """Take back a call that has not begun: ``finished`` as cancelled, code RECALLED, and it never runs. Ignored if
        it has begun."""

    async def fetch(self, task_id: str, attempt: int) -> bytes:
        """Fetch a value kept in the cluster. Waits for a broken connection to return. Raises ResultLostError."""

    def release_value(self, task_id: str, attempt: int) -> None:
        """Delete a value kept in the cluster."""

    def release_values_older_than(self, seconds: float) -> None:
        """Delete all values that have been kept for longer than this."""

    async def health(self, timeout: float) -> float:
        """Round-trip time in seconds. Raises ClusterConnectionError if there is no answer in time."""

    async def snapshot(self, timeout: float) -> ResourceSnapshot:
        """A fresh snapshot. Raises ClusterConnectionError."""

    async def close(self, sentence: str) -> None:
        """End all calls and the agent, and report every call as finished. Idempotent."""
