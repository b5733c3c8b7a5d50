"""ClusterLink: the one protocol by which tasks reach a cluster, whatever carries it.

A link lives on the control plane's event loop. Its methods never block the loop; everything that
happens over there comes back through the :class:`LinkListener`, on the same loop.

Promises of every link:

* each call given to :meth:`ClusterLink.submit` gets exactly one ``finished``, also when the cluster is
  lost: then it comes when the attempt is *known* to be dead, and says so;
* ``accepted`` and ``started`` come at most once per call, and never after its ``finished``;
* after ``link_closed`` nothing comes any more, but the answer to a call that is submitted even then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from ray_multicluster_scheduler.common.model import FailureClass, ResourceSnapshot


@dataclass(frozen=True, slots=True)
class Call:
    """One attempt of one task, ready to be sent: everything that depends on the cluster is resolved.

    Arguments that are paths under one of ``homes`` are moved to ``target_home`` over there, where they are
    unpickled anyway.
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


@dataclass(frozen=True, slots=True)
class CallResult:
    """How a call ended. ``payload`` is the pickled value, or the pickled exception of user code.

    ``failure`` and ``error_type`` are None when it succeeded or was cancelled.
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


@dataclass(frozen=True, slots=True)
class LinkInfo:
    """What the other side said of itself when it came up."""

    cluster: str
    carrier: Literal["agent", "ray_client"]
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

    def accepted(self, cluster: str, task_id: str, attempt: int) -> None: ...

    def started(self, cluster: str, task_id: str, attempt: int, at: float, node_id: str) -> None: ...

    def output(self, cluster: str, task_id: str, attempt: int, stream: str, text: str) -> None: ...

    def finished(self, cluster: str, result: CallResult) -> None: ...

    def snapshot(self, snapshot: ResourceSnapshot) -> None: ...


class ClusterLink(Protocol):
    """A way to run calls in one cluster."""

    @property
    def cluster(self) -> str: ...

    @property
    def info(self) -> LinkInfo: ...

    @property
    def connected(self) -> bool:
        """Is there contact just now? A link without contact still takes calls; they leave when it is back."""

    @property
    def idle_s(self) -> float:
        """For how long nothing of ours ran there; 0 while something does."""

    def submit(self, calls: Sequence[Call]) -> None:
        """Send a batch. Never raises for a lost cluster: then each call is answered by ``finished``."""

    def cancel(self, task_id: str, attempt: int, *, force: bool) -> None:
        """Ask for its end. Unknown or finished calls are ignored."""

    async def health(self, timeout: float) -> float:
        """Round trip in seconds. Raises ClusterConnectionError when it does not answer in time."""

    async def snapshot(self, timeout: float) -> ResourceSnapshot:
        """A fresh snapshot. Raises ClusterConnectionError."""

    async def close(self, sentence: str) -> None:
        """End what runs, end the other side, answer every call. Idempotent."""
