"""One attempt of one gang: what is known of its members, and what its answer is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ray_multicluster_scheduler.common.gang_values import joined
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.call_records import BIG_BYTES, CallRecord
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.reports import Parts
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m


@dataclass(slots=True)
class GangLife:
    """``group`` is its placement group in Ray; ``given`` says that its members are with Ray, each with its end to come.

    ``first`` is the member whose end is the end of all: the first task that failed, the first actor that ended.
    """

    record: CallRecord
    members: list[CallRecord]
    of: str
    group: Any = None
    given: bool = False
    over: bool = False
    first: CallRecord | None = None
    problem: dict[str, Any] | None = None
    """Why no member was started, if Ray refused."""
    starts: dict[int, tuple[float, str]] = field(default_factory=dict)

    def start_of_all(self) -> tuple[float, str] | None:
        """Since when all of them run, and their nodes in order; None while one was not seen to."""
        if len(self.starts) < len(self.members):
            return None
        nodes = [self.starts[index][1] for index in range(len(self.members))]
        return max(at for at, _ in self.starts.values()), " ".join(nodes)

    def all_ended(self) -> bool:
        return all(member.head is not None for member in self.members)

    def answer(self) -> tuple[dict[str, Any], bytes | None]:
        """The head and the payload; None for a payload that is still with the members' results."""
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
        if self.first is not None:
            return self._end_of(self.first)
        heads = [member.head or {} for member in self.members]
        if all(head.get("status") == "succeeded" for head in heads):
            return self._success(heads)
        return self._cancelled(heads), b""

    def _cancelled(self, heads: list[dict[str, Any]]) -> dict[str, Any]:
        """Whoever called it back must know whether anything of it ran."""
        if any(head.get("code") == m.KILLED for head in heads):
            return {"status": "cancelled", "code": m.KILLED}
        if self.starts:
            return {"status": "cancelled", "code": m.BEGUN}
        return {"status": "cancelled"}

    def _end_of(self, member: CallRecord) -> tuple[dict[str, Any], bytes | None]:
        head = {name: value for name, value in (member.head or {}).items() if name not in _OF_ONE}
        who = f"member {member.member} ({member.name})"
        if head["status"] == "succeeded":  # an actor
            return {"status": "succeeded", "message": f"{who} left by itself, so the others were ended"}, b""
        if head["status"] == "cancelled":  # somebody in its cluster did that
            head |= {"status": "failed", "failure": "crash", "code": "MEMBER_ENDED", "error_type": "TaskCancelledError"}
            head["message"] = "it was ended there, not by us"
        return {**head, "message": f"{who} failed: {head.get('message', '')}", "member": member.member}, member.payload

    def _success(self, heads: list[dict[str, Any]]) -> tuple[dict[str, Any], bytes | None]:
        head: dict[str, Any] = {"status": "succeeded", "took": max(one.get("took", 0.0) for one in heads)}
        sizes = [len(one.payload) if one.payload is not None else one.big_bytes for one in self.members]
        if sum(sizes) > BIG_BYTES:
            self.record.big_bytes = sum(sizes)
            self.record.ref = self  # the values are read when there is room for them on the line
            return head, None
        return head, joined([one.payload or b"" for one in self.members])


_OF_ONE = frozenset({"at", "node", "chunks", "dropped", "parts"})
"""What is told of the gang as a whole."""
