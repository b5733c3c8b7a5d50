"""CallSender: encodes calls as CALLS messages and sends them in batches, each function and shared object once per
connection. The format of an entry is documented in ``gateway/link/messages.py``; empty fields are left out."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any, Literal, TypeAlias

from ray_multicluster_scheduler.common.frames import CHUNK_BYTES
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import (
    Call,
    CallKey,
    MemberCall,
    MethodCall,
    NewActor,
    NewGang,
)

_BATCH_CALLS = 256
_BATCH_BYTES = CHUNK_BYTES // 2
_MAX_KNOWN = 20_000
_RESEND_BYTES = 64 * 1024
"""A shared blob up to this size is sent again while it is in transit in a large message; a call that needs a larger
one waits until that has arrived."""

SharedKey: TypeAlias = tuple[Literal["fn", "obj"], str]
"""Kind and digest of a function or object that several calls may use."""
Put: TypeAlias = Callable[[str, dict[str, Any], Sequence[bytes]], bool]
"""Puts a message into the outbox; True if no later message can overtake it. Raises for what cannot be encoded."""
Refuse: TypeAlias = Callable[[CallKey, Exception], None]
"""Reports a call that cannot be encoded."""


class CallSender:
    """Knows what the agent has received on this connection; a new connection needs a new sender."""

    def __init__(self, put: Put, refuse: Refuse) -> None:
        self._put, self._refuse = put, refuse
        self._known: OrderedDict[SharedKey, None] = OrderedDict()
        self._in_transit: dict[SharedKey, CallKey] = {}
        self._carried_by: dict[CallKey, list[SharedKey]] = {}
        self._held: dict[CallKey, list[Call]] = {}

    def accepted(self, key: CallKey) -> None:
        """The call arrived with its shared blobs: send the calls that waited for those."""
        self._add_known(self._arrived(key))
        self.send(self._held.pop(key, ()))

    def lacking(self, key: CallKey, call: Call | None) -> None:
        """The agent lacks a shared blob of this call: send all of them again."""
        self._arrived(key)
        if call is not None:
            for shared, _ in shared_blobs(call):
                self._known.pop(shared, None)
        self.send(self._held.pop(key, ()))

    def send(self, calls: Iterable[Call]) -> None:
        """Send in batches; a call with large arguments travels alone, so that it delays no other. Never raises."""
        batch: list[Call] = []
        size = 0
        for call in calls:
            carrier = self._carrier_of(call)
            if carrier is not None:
                self._held.setdefault(carrier, []).append(call)
                continue
            weight = self._weight(call)
            if weight > CHUNK_BYTES:
                self._try([call])
                continue
            if batch and (len(batch) == _BATCH_CALLS or size + weight > _BATCH_BYTES):
                self._try(batch)
                batch, size = [], 0
            batch.append(call)
            size += weight
        if batch:
            self._try(batch)

    def send_cancelled(self, call: Call) -> None:
        """Send only the number of a cancelled method call, because later calls of the actor wait for it."""
        self._put(m.CALLS, {"calls": [{**_bare_entry(call), "cancelled": True}]}, ())

    def _arrived(self, key: CallKey) -> list[SharedKey]:
        """Return the blobs that this call carried, which are no longer in transit."""
        carried = self._carried_by.pop(key, [])
        for shared in carried:
            if self._in_transit.get(shared) == key:
                del self._in_transit[shared]
        return carried

    def _carrier_of(self, call: Call) -> CallKey | None:
        """The call in transit that carries a large blob which this call needs, if any."""
        for shared, blob in shared_blobs(call):
            if shared not in self._known and len(blob) > _RESEND_BYTES and shared in self._in_transit:
                return self._in_transit[shared]
        return None

    def _weight(self, call: Call) -> int:
        return argument_bytes(call) + sum(len(blob) for one, blob in shared_blobs(call) if one not in self._known)

    def _try(self, batch: Sequence[Call]) -> None:
        """A message is put as a whole or not at all: if one call fails a batch, send singly and refuse that one."""
        try:
            self._put_batch(batch)
        except Exception as error:  # noqa: BLE001 - user values meet the encoder here; the error is that call's result
            if len(batch) > 1:
                for call in batch:
                    self._try([call])
            elif batch[0].method is not None:  # later calls wait for its number, so the agent answers it
                self._put(m.CALLS, {"calls": [{**_bare_entry(batch[0]), "refused": m.not_sendable_text(error)}]}, ())
            else:
                self._refuse((batch[0].task_id, batch[0].attempt), error)

    def _put_batch(self, batch: Sequence[Call]) -> None:
        blobs = Attachments(self._known)
        entries = [call_entry(call, blobs) for call in batch]
        if self._put(m.CALLS, {"calls": entries}, blobs.data):
            self._add_known(blobs.carried)
            return
        # Later calls may overtake this message.
        for shared, key in blobs.carried.items():
            self._in_transit[shared] = key
            self._carried_by.setdefault(key, []).append(shared)

    def _add_known(self, arrived: Iterable[SharedKey]) -> None:
        """A blob that is evicted here is sent once more; the agent asks for one that its own cache has dropped."""
        for shared in arrived:
            self._known[shared] = None
        while len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)


class Attachments:
    """The blobs of one message, each shared one once and none that the agent has."""

    def __init__(self, known: Container[SharedKey]) -> None:
        self._known = known
        self.data: list[bytes] = []
        self.carried: dict[SharedKey, CallKey] = {}

    def add(self, blob: bytes) -> int:
        """Returns its position."""
        self.data.append(blob)
        return len(self.data) - 1

    def add_shared(self, shared: SharedKey, blob: bytes, key: CallKey) -> int | None:
        """Returns its position, or None if the agent has it before it handles this entry."""
        if shared in self._known or shared in self.carried:
            return None
        self.carried[shared] = key
        return self.add(blob)


def shared_blobs(call: Call) -> Iterator[tuple[SharedKey, bytes]]:
    """The functions and objects of a call that other calls may use; the agent has the function of a method."""
    if call.gang is not None:
        for member in call.gang.members:
            yield from _shared_by_member(member)
        return
    if call.method is None:
        yield ("fn", call.function_digest), call.function
    for one in call.objects:
        yield ("obj", one.digest), one.data


def _shared_by_member(member: MemberCall) -> Iterator[tuple[SharedKey, bytes]]:
    yield ("fn", member.function_digest), member.function
    for one in member.objects:
        yield ("obj", one.digest), one.data


def argument_bytes(call: Call) -> int:
    """The size of what is sent for this call alone."""
    members = () if call.gang is None else call.gang.members
    return len(call.arguments) + sum(len(member.arguments) for member in members)


def call_entry(call: Call, blobs: Attachments) -> dict[str, Any]:
    """The entry of a call in CALLS."""
    key = (call.task_id, call.attempt)
    entry: dict[str, Any] = {"id": call.task_id, "attempt": call.attempt, "fence": call.fence, "name": call.name}
    if call.gang is not None:
        entry["gang"] = _gang_entry(call.gang, blobs, key)
    else:
        entry |= _shared_entry(shared_blobs(call), blobs, key)
        entry["args_blob"] = blobs.add(call.arguments)
    entry["res"] = dict(call.resources)
    if call.runtime_env:
        entry["env"] = dict(call.runtime_env)
    if call.target_home:
        entry["homes"], entry["home"] = list(call.homes), call.target_home
    if call.ahead:
        entry["ahead"] = call.ahead
    if call.keep:
        entry["keep"] = True
    if call.short:
        entry["short"] = True
    if call.streams:
        entry["streams"] = True
    if call.actor is not None:
        entry["actor"] = {name: getattr(call.actor, name) for name in NewActor.__slots__}
        entry["actor"]["placement"] = dict(call.actor.placement)
    if call.method is not None:
        entry |= _method_entry(call.method)
    return entry


def _shared_entry(shared: Iterator[tuple[SharedKey, bytes]], blobs: Attachments, key: CallKey) -> dict[str, Any]:
    entry: dict[str, Any] = {}
    for (kind, digest), blob in shared:
        position = blobs.add_shared((kind, digest), blob, key)
        if kind == "fn":
            entry["fn"], entry["fn_blob"] = digest, position
        else:
            entry.setdefault("objects", []).append([digest, position])
    return entry


def _gang_entry(gang: NewGang, blobs: Attachments, key: CallKey) -> dict[str, Any]:
    members = []
    for member in gang.members:
        entry = {"name": member.name, **_shared_entry(_shared_by_member(member), blobs, key)}
        entry |= {"args_blob": blobs.add(member.arguments), "res": dict(member.resources)}
        members.append({**entry, "asynchronous": True} if member.asynchronous else entry)
    return {"strategy": gang.strategy, "of": gang.of, "members": members}


def _method_entry(method: MethodCall) -> dict[str, Any]:
    entry: dict[str, Any] = {"method": [method.actor_id, method.actor_attempt, method.method, method.number]}
    return {**entry, "life": method.life} if method.life else entry


def _bare_entry(call: Call) -> dict[str, Any]:
    entry = {"id": call.task_id, "attempt": call.attempt}
    return entry if call.method is None else {**entry, **_method_entry(call.method)}
