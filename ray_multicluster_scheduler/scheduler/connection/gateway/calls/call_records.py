"""What the agent knows of one call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ray_multicluster_scheduler.common.current_item import member_id
from ray_multicluster_scheduler.common.frames import MAX_MESSAGE_BYTES
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.reports import Key, Report
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.shared_object_cache import Kept, KeptByDigest
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.work_order import Homes

BIG_BYTES = 1024 * 1024
"""Larger results stay in the object store until they are sent."""
MOST_VALUE_BYTES = MAX_MESSAGE_BYTES - 16 * 1024 * 1024
"""There must be room for heads, too."""
_INLINE_BYTES = 64 * 1024
"""Larger arguments go to the object store, which Ray may block for."""


@dataclass(frozen=True, slots=True)
class Method:
    """Whose method a call is."""

    actor: Key
    name: str
    number: int
    life: int = 0
    """Which process of the control plane sent it; each counts its calls from 0."""


@dataclass(slots=True)
class Gang:
    """The members of a gang, each with a record of its own that the control plane knows nothing of."""

    strategy: str
    of: str
    members: list[CallRecord]


@dataclass(slots=True)
class CallRecord:
    """One call, from acceptance until its result was acknowledged."""

    key: Key
    fence: int = 0
    name: str = ""
    digest: str = ""
    function: Kept | None = None
    arguments: Any = b""
    """Bytes; for a method, a reference into the object store once large ones are there."""
    resources: dict[str, float] = field(default_factory=dict)
    runtime_env: dict[str, Any] = field(default_factory=dict)
    homes: Homes = None
    objects: list[Kept] = field(default_factory=list)
    ahead: str = ""
    short: bool = False
    keep: bool = False
    """Does a large value stay here until it is asked for?"""
    asynchronous: bool = False
    """Of an actor that is a member of a gang."""
    actor: dict[str, Any] | None = None
    method: Method | None = None
    gang: Gang | None = None
    member: int | None = None
    """Its position in the gang that it is ``part_of``, if it is."""
    part_of: Key | None = None
    told: Callable[[CallRecord], None] | None = None
    """Who is told of its end instead of the control plane: the gang that it is part of."""
    ref: Any = None
    cancelled: bool = False
    force: bool = False
    """Is it to be ended without asking its code?"""
    report: Report = field(default_factory=Report)
    head: dict[str, Any] | None = None
    payload: bytes | None = None
    big_bytes: int = 0
    """Of a result that stays in the object store until it is sent."""
    moved_to: Key | None = None
    waits_for_output: bool = False
    being_stored: bool = False
    timers: list[asyncio.TimerHandle] = field(default_factory=list)

    @property
    def big(self) -> bool:
        """Is the result too large to be kept here? Then it stays in Ray's object store until it is sent."""
        return self.head is not None and self.payload is None and self.ref is not None

    @property
    def output_key(self) -> Key:
        """Whose output it is: what methods print is their actor's, and what members print is their gang's."""
        return self.part_of or (self.key if self.method is None else self.method.actor)

    @property
    def slow_to_give(self) -> bool:
        """Does giving it to Ray mean to copy something large first?"""
        shared = self.objects if self.function is None else [self.function, *self.objects]
        return len(self.arguments) > _INLINE_BYTES or any(one.not_stored for one in shared)

    def given(self, store: Callable[[bytes], Any]) -> tuple[tuple[bytes | None, bytes | None], list[Any]]:
        """What to give to Ray: its function and its arguments as far as they are small, and what comes beside them.
        May block and raise."""
        shared = self.objects if self.function is None else [self.function, *self.objects]
        beside = [one.argument(store) for one in shared]
        function = beside.pop(0) if self.function is not None and isinstance(beside[0], bytes) else None
        if isinstance(self.arguments, bytes) and len(self.arguments) <= _INLINE_BYTES:
            return (function, self.arguments), beside
        beside.insert(int(self.function is not None and function is None), self.arguments)
        return (function, None), beside


def record_from(
    call: dict[str, Any], blobs: Sequence[Any], functions: KeptByDigest, objects: KeptByDigest
) -> CallRecord | None:
    """One entry of CALLS. None: it lacks something that was dropped here to make room."""
    if "gang" in call:
        return _gang_from(call, blobs, functions, objects)
    method = _method(call)
    if method is not None and "args_blob" not in call:  # it will not be called, but its number counts
        record = CallRecord((call["id"], call["attempt"]), method=method, cancelled=bool(call.get("cancelled")))
        record.head = _not_called(call)
        return record
    function = None
    if method is None:
        function = _kept(functions, call["fn"], call["fn_blob"], blobs)
    shared = [_kept(objects, digest, position, blobs) for digest, position in call.get("objects", ())]
    if (method is None and function is None) or None in shared:
        return None
    return CallRecord(
        key=(call["id"], call["attempt"]),
        fence=call["fence"],
        name=call["name"],
        digest=call.get("fn", ""),
        function=function,
        arguments=blobs[call["args_blob"]],
        resources=call["res"],
        runtime_env=call.get("env", {}),
        homes=(call["homes"], call["home"]) if call.get("home") else None,
        objects=[one for one in shared if one is not None],
        ahead=call.get("ahead", ""),
        short=bool(call.get("short")),
        keep=bool(call.get("keep")),
        actor=call.get("actor"),
        method=method,
    )


def _gang_from(
    call: dict[str, Any], blobs: Sequence[Any], functions: KeptByDigest, objects: KeptByDigest
) -> CallRecord | None:
    same: dict[str, Any] = {name: call[name] for name in ("attempt", "fence", "env", "homes", "home") if name in call}
    members = [
        record_from({**same, **head, "id": member_id(call["id"], index)}, blobs, functions, objects)
        for index, head in enumerate(call["gang"]["members"])
    ]
    if None in members:
        return None
    key, spec = (call["id"], call["attempt"]), call["gang"]
    gang = Gang(spec["strategy"], spec["of"], [one for one in members if one is not None])
    for index, member in enumerate(gang.members):
        member.member, member.part_of = index, key
        member.asynchronous = bool(spec["members"][index].get("asynchronous"))
    return CallRecord(key=key, fence=call["fence"], name=call["name"], resources=call["res"], gang=gang)


def _method(call: dict[str, Any]) -> Method | None:
    if "method" not in call:
        return None
    actor_id, attempt, name, number = call["method"]
    return Method((str(actor_id), int(attempt)), str(name), int(number), int(call.get("life", 0)))


def _kept(kept: KeptByDigest, digest: str, position: int | None, blobs: Sequence[Any]) -> Kept | None:
    return kept.get(digest) if position is None else kept.learn(digest, blobs[position])


def _not_called(call: dict[str, Any]) -> dict[str, Any]:
    if call.get("cancelled"):
        return {"status": "cancelled"}
    sentence = str(call["refused"])
    return {
        "status": "failed",
        "failure": "permanent",
        "code": "NOT_SENDABLE",
        "error_type": "ValueError",
        "message": sentence,
    }
