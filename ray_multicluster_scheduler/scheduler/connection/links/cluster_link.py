"""ClusterLink: the one protocol by which tasks reach a cluster, whatever carries it.

A link lives on the control plane's event loop. Its methods never block the loop; everything that
happens over there comes back through the :class:`LinkListener`, on the same loop.

Promises of every link:

* each call given to :meth:`ClusterLink.submit` gets exactly one ``finished``, also when the cluster is
  lost: then it comes when the attempt is *known* to be dead, and says so;
* ``accepted`` and ``started`` come at most once per call, and never after its ``finished``; for calls of an actor's
  method neither comes;
* after ``link_closed`` nothing comes any more, but the answer to a call that is submitted even then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from ray_multicluster_scheduler.common.model import FailureClass, ResourceSnapshot

Ahead = Literal["", "queue", "overlap"]


@dataclass(frozen=True, slots=True)
class SharedObject:
    """A pickled value that several calls may use; sent once over each connection."""

    digest: str
    data: bytes


@dataclass(frozen=True, slots=True)
class NewActor:
    """Makes a call the life of an actor: ``started`` when its constructor is done, ``finished`` when it has ended.

    It ends as succeeded when it left by itself, as cancelled when it was killed, else as failed. ``ray_name`` is
    its name in our namespace over there. ``placement`` is what had to be free for it; what it holds is the call's
    ``resources``. A detached one outlives its agent; then, and only then, Ray itself restarts it. ``adopt`` looks for
    a detached one of that name instead of making it. ``asynchronous``: its class has ``async def`` methods
    (:func:`common.actor_class.is_asynchronous`), so its methods run on an event loop there.
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
    """One task or actor of a gang. ``objects`` take the place of the ObjectArguments among its own arguments."""

    name: str
    function_digest: str
    function: bytes
    arguments: bytes
    resources: Mapping[str, float]
    objects: Sequence[SharedObject] = ()
    asynchronous: bool = False


@dataclass(frozen=True, slots=True)
class NewGang:
    """Makes a call the life of a gang: its members start together in one placement group, or none of them does.

    ``started`` comes when all of them run (of actors: are ready), with their nodes in the order of the members and a
    blank between. There is one ``finished``: the pickled list of their values, or how the first of them failed that
    did; the others were ended then, and the placement group is gone. A gang of actors ends when one of them does.
    """

    strategy: str
    of: Literal["task", "actor"]
    members: Sequence[MemberCall]


@dataclass(frozen=True, slots=True)
class MethodCall:
    """Makes a call one of an actor's method. ``number`` counts from 0 for each attempt of the actor without a gap:
    calls are run in that order, however they travelled. ``life`` is the process of the control plane that sends it: a
    later one has a larger one, and counts from 0 again. What the one before sent is run first, as far as it arrived."""

    actor_id: str
    actor_attempt: int
    method: str
    number: int
    gang_id: str = ""
    """The item that the actor is a member of, if it is one."""
    life: int = 0


@dataclass(frozen=True, slots=True)
class Call:
    """One attempt of one task, ready to be sent: everything that depends on the cluster is resolved.

    Arguments that are paths under one of ``homes`` are moved to ``target_home`` over there, where they are
    unpickled anyway. ``objects`` take the place of the ObjectArguments among the arguments.

    A call that is sent ``ahead`` has no place yet. It waits with the gateway until a call of ours that holds the same
    ``resources`` ends, and takes over its place (``moved``), or until :meth:`ClusterLink.start`. With "overlap" one
    such call per place may wait in Ray itself, or a few if they are very short; with "queue" none may, because there
    is room in the cluster that is not ours to use.
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
    """Known to be short: its start may be told with its end. Of all others it is told as soon as they start."""
    actor: NewActor | None = None
    method: MethodCall | None = None
    keep: bool = False
    """A large value stays over there, and is fetched when it is asked for."""
    gang: NewGang | None = None
    """With one, function and arguments are the members', and those of the call are empty."""


@dataclass(frozen=True, slots=True)
class CallResult:
    """How a call ended. ``payload`` is the pickled value, or the pickled exception of user code.

    ``failure`` and ``error_type`` are None when it succeeded or was cancelled. ``took`` is how long user code ran, if
    it did. ``actor_id`` is set for a call of an actor's method. ``started_at`` and ``node_id`` tell of a start that was
    not told before. ``member`` is whose failure it was, where the call was a gang. A value of so many bytes as ``kept``
    says stayed over there, with the agent ``kept_by``.
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


@dataclass(frozen=True, slots=True)
class LinkInfo:
    """What the other side said of itself when it came up."""

    cluster: str
    carrier: Literal["agent", "dial_in", "ray_client"]
    protocol: int
    ray_version: str
    python_version: str
    session_id: str
    os: str
    arch: str
    job_id: str = ""


class LinkListener(Protocol):
    """Who hears what happens on links (the ResultCollector). Called on the loop; must not block."""

    def link_up(self, info: LinkInfo) -> None: ...

    def link_down(self, cluster: str, sentence: str) -> None: ...

    def link_closed(self, cluster: str, sentence: str) -> None: ...

    def head_silent(self, cluster: str, silent_s: float) -> None:
        """The other side is there, and the cluster's head has not answered it for so long. Told again and again; over
        with the next ``snapshot``."""

    def accepted(self, cluster: str, task_id: str, attempt: int) -> None: ...

    def started(self, cluster: str, task_id: str, attempt: int, at: float, node_id: str) -> None: ...

    def moved(self, cluster: str, ended: tuple[str, int], begun: tuple[str, int]) -> None:
        """The place of a call that ended went to one that was sent ahead. Comes before either's ``finished``."""

    def output(self, cluster: str, task_id: str, attempt: int, stream: str, text: str) -> None:
        """What methods of an actor print is the actor's."""

    def dropped(self, cluster: str, task_id: str, attempt: int, characters: int) -> None:
        """So much of its output was too much for the way here."""

    def finished(self, cluster: str, result: CallResult) -> None: ...

    def when_durable(self, deed: Callable[[], object]) -> None:
        """Do this, on the loop, when all that was told by ``finished`` before is kept for good; at once, if nothing is
        kept longer than the process. Only then the other side may forget it."""

    def hold_until_delivered(self, call_id: str, deed: Callable[[], object]) -> bool:
        """Before the answer to a call of a method is told. True: ``deed`` will be done, on the loop, when whoever made
        the call has its answer, and the other side may forget it only then. False: as for any other answer."""

    def snapshot(self, snapshot: ResourceSnapshot) -> None: ...


class ClusterLink(Protocol):
    """A way to run calls in one cluster."""

    @property
    def cluster(self) -> str: ...

    @property
    def agent(self) -> str:
        """Who is at the other end; no two have one name."""

    @property
    def info(self) -> LinkInfo: ...

    @property
    def connected(self) -> bool:
        """Is there contact just now? A link without contact still takes calls; they leave when it is back."""

    @property
    def idle_s(self) -> float:
        """For how long nothing of ours ran there; 0 while something does, or while values of ours are kept there."""

    def submit(self, calls: Sequence[Call]) -> None:
        """Send a batch. Never raises for a lost cluster: then each call is answered by ``finished``."""

    def adopt(self, task_id: str, attempt: int) -> None:
        """This call was given to the same agent by the process before ours, and was seen to start: whatever becomes of
        it is told. If nobody knows it over there, it is answered as lost."""

    def adopt_method(self, call_id: str, actor: tuple[str, int], output_owner: tuple[str, int]) -> None:
        """This call of a method of ``actor`` was given to the same agent by the process before ours, or was on its way:
        its answer is told, if need be before this returns. If nobody knows it over there, it is answered as lost.
        ``output_owner``: whose output is what it prints, the actor's or its gang's."""

    def cancel(self, task_id: str, attempt: int, *, force: bool) -> None:
        """Ask for its end; an actor is killed. Unknown or finished calls are ignored."""

    def start(self, task_id: str, attempt: int) -> None:
        """There is a place for this call that was sent ahead. Ignored if it has begun."""

    def recall(self, task_id: str, attempt: int) -> None:
        """Give it back if it was sent ahead and has not begun: ``finished`` as cancelled, code RECALLED, and it never
        runs. Ignored otherwise: what has begun, or waits in Ray, goes on."""

    async def fetch(self, task_id: str, attempt: int) -> bytes:
        """A value that was kept over there. Waits for a broken connection to come back. Raises ResultLostError."""

    def release_value(self, task_id: str, attempt: int) -> None:
        """A value that is kept over there is not wanted any more."""

    def release_values_older_than(self, seconds: float) -> None:
        """The same of all that are known for longer than this."""

    async def health(self, timeout: float) -> float:
        """Round trip in seconds. Raises ClusterConnectionError when it does not answer in time."""

    async def snapshot(self, timeout: float) -> ResourceSnapshot:
        """A fresh snapshot. Raises ClusterConnectionError."""

    async def close(self, sentence: str) -> None:
        """End what runs, end the other side, answer every call. Idempotent."""
