"""GangAttempt: the state of one attempt of a gang, for ``GangRunner``; builds its result from those of its members."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ray_multicluster_scheduler.common.gang_values import joined
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.call_records import CallRecord, Parts
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.codec import BIG_BYTES

_MEMBER_FIELDS = frozenset({"at", "node", "chunks", "dropped", "parts"})
"""Fields that are combined from all members in the result of a gang."""


@dataclass(slots=True)
class GangAttempt:
    """``submitted``: Ray has its members, so each of them will end by itself."""

    record: CallRecord
    members: list[CallRecord]
    of: str
    placement_group: Any = None
    submitted: bool = False
    over: bool = False
    first_ended: CallRecord | None = None
    """The member that ended the gang: the first task that failed, or the first actor that ended."""
    problem: dict[str, Any] | None = None
    """The head of the result if Ray refused the gang before a member was started."""
    starts: dict[int, tuple[float, str]] = field(default_factory=dict)

    def start_of_all(self) -> tuple[float, str] | None:
        """Since when all members run, and their nodes in order; None until all have reported."""
        if len(self.starts) < len(self.members):
            return None
        nodes = [self.starts[index][1] for index in range(len(self.members))]
        return max(at for at, _ in self.starts.values()), " ".join(nodes)

    def all_ended(self) -> bool:
        return all(member.head is not None for member in self.members)

    def result(self) -> tuple[dict[str, Any], bytes | None]:
        """The head and the payload; None for a payload that is still stored with the members' results."""
        head, payload = self._outcome()
        started = self.start_of_all()
        if started is not None:
            head["at"], head["node"] = started
        heads = [member.head or {} for member in self.members]
        for name in ("chunks", "dropped"):
            number = sum(one.get(name, 0) for one in heads)
            if number:
                head[name] = number
        parts: Parts = [part for one in heads for part in one.get("parts", ())]
        if parts:
            head["parts"] = parts
        return head, payload

    def _outcome(self) -> tuple[dict[str, Any], bytes | None]:
        if self.problem is not None:
            return dict(self.problem), b""
        if self.first_ended is not None:
            return self._ended_by(self.first_ended)
        heads = [member.head or {} for member in self.members]
        if all(head.get("status") == "succeeded" for head in heads):
            return self._success(heads)
        return self._cancelled(heads), b""

    def _cancelled(self, heads: list[dict[str, Any]]) -> dict[str, Any]:
        """The head of a cancelled gang; the code tells whether a member may have run."""
        if any(head.get("code") == m.KILLED for head in heads):
            return {"status": "cancelled", "code": m.KILLED}
        if self.starts:
            return {"status": "cancelled", "code": m.BEGUN}
        return {"status": "cancelled"}

    def _ended_by(self, member: CallRecord) -> tuple[dict[str, Any], bytes | None]:
        head = {name: value for name, value in (member.head or {}).items() if name not in _MEMBER_FIELDS}
        name = f"member {member.member} ({member.name})"
        if head["status"] == "succeeded":  # an actor
            return {"status": "succeeded", "message": f"{name} left by itself, so the others were ended"}, b""
        if head["status"] == "cancelled":  # within its cluster
            head |= {"status": "failed", "failure": "crash", "code": "MEMBER_ENDED", "error_type": "TaskCancelledError"}
            head["message"] = "it was cancelled in the cluster, not by the control plane"
        return {**head, "message": f"{name} failed: {head.get('message', '')}", "member": member.member}, member.payload

    def _success(self, heads: list[dict[str, Any]]) -> tuple[dict[str, Any], bytes | None]:
        head: dict[str, Any] = {"status": "succeeded", "took": max(one.get("took", 0.0) for one in heads)}
        sizes = [len(one.payload) if one.payload is not None else one.stored_bytes for one in self.members]
        if sum(sizes) > BIG_BYTES:
            self.record.stored_bytes = sum(sizes)
            self.record.ref = self  # the values are read when the connection has room for them
            return head, None
        return head, joined([one.payload or b"" for one in self.members])
