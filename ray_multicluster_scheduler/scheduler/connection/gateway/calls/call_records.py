"""CallRecord: the state of one call in the agent. SharedObjectCache: functions and objects that several calls use."""

from __future__ import annotations

import asyncio
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ray_multicluster_scheduler.common.current_item import member_id
from ray_multicluster_scheduler.common.frames import MAX_MESSAGE_BYTES
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.codec import Homes, Key

MAX_VALUE_BYTES = MAX_MESSAGE_BYTES - 16 * 1024 * 1024
"""The largest value of a message, which also has a head."""
_INLINE_BYTES = 64 * 1024
"""Larger arguments, functions and objects go to the object store, where Ray may block."""

Parts: TypeAlias = list[tuple[str, str]]
"""Output: pairs of a stream and a text."""


class SharedObject:
    """A pickled function or object. A waiting call holds a reference to it, even after the cache has dropped it."""

    def __init__(self, pickled: bytes) -> None:
        self.size = len(pickled)
        self._value: Any = pickled
        self._stored = False
        self._lock = threading.Lock()

    @property
    def needs_storing(self) -> bool:
        """True if it must still be copied to the object store, which takes a while."""
        return self.size > _INLINE_BYTES and not self._stored

    def argument(self, store: Callable[[bytes], Any]) -> Any:
        """The argument for Ray: its bytes, or a reference if it is large. May block and raise."""
        with self._lock:
            if self.needs_storing:
                self._value = store(self._value)
                self._stored = True
            return self._value


class SharedObjectCache:
    """LRU cache of shared objects by digest; the control plane sends a dropped one again when asked (UNKNOWN)."""

    def __init__(self, max_count: int, max_bytes: int) -> None:
        self.max_count, self.max_bytes = max_count, max_bytes
        self._objects: OrderedDict[str, SharedObject] = OrderedDict()
        self._bytes = 0

    def add(self, digest: str, pickled: bytes) -> SharedObject:
        """Add it, or return the cached one."""
        cached = self.get(digest)
        if cached is not None:
            return cached
        new = self._objects[digest] = SharedObject(pickled)
        self._bytes += new.size
        while len(self._objects) > 1 and (len(self._objects) > self.max_count or self._bytes > self.max_bytes):
            _, dropped = self._objects.popitem(last=False)
            self._bytes -= dropped.size
        return new

    def get(self, digest: str) -> SharedObject | None:
        cached = self._objects.get(digest)
        if cached is not None:
            self._objects.move_to_end(digest)
        return cached


@dataclass(slots=True)
class Progress:
    """The reported progress of a call: its start, and output that was not sent yet."""

    started: tuple[float, str] | None = None
    """When, and on which node."""
    chunks: int = 0
    dropped: int = 0
    unsent: Parts = field(default_factory=list)
    unsent_chars: int = 0


@dataclass(frozen=True, slots=True)
class Method:
    """The actor method that a call runs."""

    actor: Key
    name: str
    number: int
    life: int = 0
    """The number of the control plane process that sent it; each process counts its calls from 0."""


@dataclass(slots=True)
class GangSpec:
    """The members of a gang, each with a record of its own, which the control plane does not know."""

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
    function: SharedObject | None = None
    arguments: Any = b""
    """Bytes; of a method, a reference into the object store once large ones are stored."""
    resources: dict[str, float] = field(default_factory=dict)
    runtime_env: dict[str, Any] = field(default_factory=dict)
    homes: Homes = None
    objects: list[SharedObject] = field(default_factory=list)
    ahead: str = ""
    short: bool = False
    keep: bool = False
    """Keep a large value in the cluster until the control plane fetches it."""
    asynchronous: bool = False
    """Only of an actor that is a member of a gang."""
    actor: dict[str, Any] | None = None
    method: Method | None = None
    streams: bool = False
    """It is a generator, whose values are read while it runs."""
    stream: Any = None
    """The ValueStream of a generator, once it is needed."""
    gang: GangSpec | None = None
    member: int | None = None
    """Its position in the gang ``gang_key``."""
    gang_key: Key | None = None
    on_end: Callable[[CallRecord], None] | None = None
    """Of a gang's member: called when it ends, instead of a report to the control plane."""
    ref: Any = None
    sent_at: float = math.inf
    """When it was given to Ray."""
    begun: bool = False
    """Its process has asked for the permission to start, and got it."""
    cancelled: bool = False
    force: bool = False
    """Cancelled without an interrupt first."""
    process: tuple[str, int] | None = None
    """Of a task that has reported its start: its node, and the number of its process there."""
    recalled: bool = False
    """Cancelled by a recall, before it began."""
    progress: Progress = field(default_factory=Progress)
    head: dict[str, Any] | None = None
    """Of its result; None until it has ended."""
    payload: bytes | None = None
    stored_bytes: int = 0
    """Size of a result that stays in the object store until it is sent."""
    moved_to: Key | None = None
    """The call that got its slot."""
    waits_for_output: bool = False
    being_stored: bool = False
    timers: list[asyncio.TimerHandle] = field(default_factory=list)

    @property
    def may_have_begun(self) -> bool:
        """True unless nothing was heard of its start."""
        return self.begun or self.progress.started is not None

    @property
    def has_stored_result(self) -> bool:
        """True if its result stays in Ray's object store until it is sent."""
        return self.head is not None and self.payload is None and self.ref is not None

    @property
    def output_key(self) -> Key:
        """The item that owns its output: the actor for methods, the gang for members."""
        return self.gang_key or (self.key if self.method is None else self.method.actor)

    @property
    def must_store(self) -> bool:
        """True if arguments or objects must be copied to the object store before the call is submitted."""
        return len(self.arguments) > _INLINE_BYTES or any(one.needs_storing for one in self._shared)

    @property
    def _shared(self) -> list[SharedObject]:
        return self.objects if self.function is None else [self.function, *self.objects]

    def split(self, store: Callable[[bytes], Any]) -> tuple[tuple[bytes | None, bytes | None], list[Any]]:
        """Function and arguments for the order, None for large ones; and the others, as arguments of Ray's. May block
        and raise."""
        separate = [one.argument(store) for one in self._shared]
        function = separate.pop(0) if self.function is not None and isinstance(separate[0], bytes) else None
        if isinstance(self.arguments, bytes) and len(self.arguments) <= _INLINE_BYTES:
            return (function, self.arguments), separate
        separate.insert(int(self.function is not None and function is None), self.arguments)
        return (function, None), separate

    def release_arguments(self) -> None:
        """Free the values that Ray has by now, or does not need."""
        self.arguments, self.function, self.objects = b"", None, []


def record_from(
    call: dict[str, Any], blobs: Sequence[Any], functions: SharedObjectCache, objects: SharedObjectCache
) -> CallRecord | None:
    """The record of one entry of CALLS; None if the cache has dropped a function or object that it uses."""
    if "gang" in call:
        return _gang_from(call, blobs, functions, objects)
    method = _method(call)
    if method is not None and "args_blob" not in call:  # it is not called, but later calls wait for its number
        if call.get("cancelled"):
            return CallRecord(
                (call["id"], call["attempt"]), method=method, cancelled=True, head={"status": "cancelled"}
            )
        head = {"status": "failed", "failure": "permanent", "code": "NOT_SENDABLE", "error_type": "ValueError"}
        head["message"] = str(call["refused"])
        return CallRecord((call["id"], call["attempt"]), method=method, head=head)
    function = None if method is not None else _shared_object(functions, call["fn"], call["fn_blob"], blobs)
    shared = [_shared_object(objects, digest, position, blobs) for digest, position in call.get("objects", ())]
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
        streams=bool(call.get("streams")),
        actor=call.get("actor"),
        method=method,
    )


def _gang_from(
    call: dict[str, Any], blobs: Sequence[Any], functions: SharedObjectCache, objects: SharedObjectCache
) -> CallRecord | None:
    same: dict[str, Any] = {name: call[name] for name in ("attempt", "fence", "env", "homes", "home") if name in call}
    key, spec = (call["id"], call["attempt"]), call["gang"]
    made = [
        record_from({**same, **head, "id": member_id(call["id"], index)}, blobs, functions, objects)
        for index, head in enumerate(spec["members"])
    ]
    members = [one for one in made if one is not None]
    if len(members) < len(made):
        return None
    for index, member in enumerate(members):
        member.member, member.gang_key = index, key
        member.asynchronous = bool(spec["members"][index].get("asynchronous"))
    gang = GangSpec(spec["strategy"], spec["of"], members)
    return CallRecord(key=key, fence=call["fence"], name=call["name"], resources=call["res"], gang=gang)


def _method(call: dict[str, Any]) -> Method | None:
    if "method" not in call:
        return None
    actor_id, attempt, name, number = call["method"]
    return Method((str(actor_id), int(attempt)), str(name), int(number), int(call.get("life", 0)))


def _shared_object(
    cache: SharedObjectCache, digest: str, position: int | None, blobs: Sequence[Any]
) -> SharedObject | None:
    return cache.get(digest) if position is None else cache.add(digest, blobs[position])
