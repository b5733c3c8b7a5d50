"""PendingCalls: the calls of one link until their results arrive; used by ``CallTracker``.

``OrphanedResults`` holds results of calls of the previous process until they are adopted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ray_multicluster_scheduler.common.model import FailureClass
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import Call, CallKey, CallResult

_MAX_ORPHANS = 10_000
_MAX_ORPHAN_BYTES = 256 * 1024 * 1024


@dataclass(slots=True)
class PendingCall:
    """A call without a result; ``call`` is kept until the agent has accepted it.

    Requests (cancel, start, recall) may overtake a large call or be lost with a connection, so they are repeated.
    """

    call: Call | None
    actor: CallKey | None = None
    """For a method call: its actor."""
    output_owner: CallKey | None = None
    """For a method call: the actor or gang that its output belongs to."""
    cancelled: bool = False
    force: bool = False
    start_requested: bool = False
    recalled: bool = False
    moved: bool = False
    started: bool = False
    inherited: bool = False
    """A method call sent by the previous process: only the agent knows whether it arrived."""

    def failed(self, key: CallKey, failure: FailureClass, error_type: str, code: str, message: str) -> CallResult:
        return self._result(key, "failed", failure=failure, error_type=error_type, code=code, message=message)

    def lost(self, key: CallKey, sentence: str, code: str = "CLUSTER_LOST") -> CallResult:
        """The result of a call that died with its link; "cancelled" if cancellation was requested."""
        if self.cancelled:
            return self._result(key, "cancelled", code=code, message=sentence)
        return self.failed(key, FailureClass.CLUSTER, "ClusterLostError", code, sentence)

    def ended_before_sending(self, key: CallKey) -> CallResult:
        """The result of a call that was cancelled or recalled before it arrived."""
        return self._result(key, "cancelled", code="" if self.cancelled else m.RECALLED)

    def finished(self, entry: dict[str, Any], payload: Any, agent: str) -> CallResult:
        """Decode one entry of FINISHED, as ``agent`` sent it. Raises KeyError, ValueError if it is malformed."""
        failure = entry.get("failure")
        with_start = "at" in entry and not self.started and self.actor is None
        return CallResult(
            task_id=entry["id"],
            attempt=entry["attempt"],
            status=entry["status"],
            payload=bytes(payload) or None,
            failure=FailureClass(failure) if failure else None,
            error_type=entry.get("error_type"),
            code=entry.get("code", ""),
            message=entry.get("message", ""),
            traceback=entry.get("traceback", ""),
            took=entry.get("took"),
            actor_id=None if self.actor is None else self.actor[0],
            started_at=float(entry["at"]) if with_start else None,
            node_id=str(entry["node"]) if with_start else None,
            member=entry.get("member"),
            kept=entry.get("kept"),
            kept_by=agent if "kept" in entry else None,
        )

    def _result(self, key: CallKey, status: Literal["succeeded", "failed", "cancelled"], **fields: Any) -> CallResult:
        return CallResult(*key, status, actor_id=None if self.actor is None else self.actor[0], **fields)


class PendingCalls(dict[CallKey, PendingCall]):
    """The calls that were given to a link and have no result yet."""

    def add(self, call: Call) -> None:
        actor = owner = None
        if call.method is not None:
            actor = (call.method.actor_id, call.method.actor_attempt)
            owner = (call.method.gang_id or call.method.actor_id, call.method.actor_attempt)
        self[call.task_id, call.attempt] = PendingCall(call, actor, owner)

    def adopt(self, key: CallKey) -> None:
        """Add a call that the agent has, and has started."""
        self.setdefault(key, PendingCall(None, started=True))

    def adopt_method(self, key: CallKey, actor: CallKey, output_owner: CallKey) -> None:
        """Add a method call that the agent may have."""
        self.setdefault(key, PendingCall(None, actor, output_owner, started=True, inherited=True))

    def mark_accepted(self, key: CallKey) -> PendingCall | None:
        """The agent has the call. Returns it the first time, else None."""
        pending = self.get(key)
        if pending is None or pending.call is None:
            return None
        pending.call = None
        return pending

    def mark_started(self, key: CallKey) -> bool:
        """The call runs. True the first time; always False for a method."""
        pending = self.get(key)
        if pending is None or pending.started or pending.actor is not None:
            return False
        pending.started = True
        return True

    def pop_all(self) -> list[tuple[CallKey, PendingCall]]:
        calls = list(self.items())
        self.clear()
        return calls


@dataclass(frozen=True, slots=True)
class OrphanedResult:
    """One entry of FINISHED with its attachment; None if there was no room, so that only the agent has it."""

    entry: dict[str, Any]
    payload: bytes | None


class OrphanedResults:
    """Results of the previous process that were not adopted yet. They are not acknowledged, so the agent sends them to
    the next process if this one ends."""

    def __init__(self, max_results: int = _MAX_ORPHANS, max_bytes: int = _MAX_ORPHAN_BYTES) -> None:
        self._max_results, self._max_bytes = max_results, max_bytes
        self._results: dict[CallKey, OrphanedResult] = {}
        self._bytes = 0

    def add(self, key: CallKey, entry: dict[str, Any], payload: Any) -> list[CallKey]:
        """Keep this result. Returns the keys of the oldest ones, which were dropped to make room."""
        self.claim(key)  # the agent may repeat it
        dropped = []
        while len(self._results) >= self._max_results:
            dropped.append(next(iter(self._results)))
            self.claim(dropped[-1])
        fits = self._bytes + len(payload) <= self._max_bytes
        self._results[key] = OrphanedResult(entry, bytes(payload) if fits else None)
        self._bytes += len(payload) if fits else 0
        return dropped

    def claim(self, key: CallKey) -> OrphanedResult | None:
        """Remove and return the result of this call; None if there is none."""
        result = self._results.pop(key, None)
        if result is not None:
            self._bytes -= len(result.payload or b"")
        return result

    def clear(self) -> list[CallKey]:
        """Drop all results."""
        keys = list(self._results)
        self._results.clear()
        self._bytes = 0
        return keys

    def __len__(self) -> int:
        return len(self._results)
