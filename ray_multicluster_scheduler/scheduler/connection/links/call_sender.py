"""Calls on their way to one connection: in batches, each function and each shared object once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from ray_multicluster_scheduler.common.frames import CHUNK_BYTES
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m
from ray_multicluster_scheduler.scheduler.connection.links.call_head import (
    Blobs,
    Need,
    argument_bytes,
    head_of,
    method_of,
    needs_of,
)
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import Call
from ray_multicluster_scheduler.scheduler.connection.links.pending_calls import Key

_BATCH_CALLS = 256
_BATCH_BYTES = CHUNK_BYTES // 2
_MOST_KNOWN = 20_000
_CHEAP_BYTES = 64 * 1024
"""What is under way in a large message is sent again if it is smaller than this; who needs more waits for it."""

Put: TypeAlias = Callable[[str, dict[str, Any], Sequence[bytes]], bool]
"""Puts a message into the outbox; True if no later message can overtake it. Raises for what cannot be encoded."""
Refuse: TypeAlias = Callable[[Key, Exception], None]
"""Answers a call that cannot be sent."""


class CallSender:
    """Remembers what the other end of this connection has already; a new connection needs a new one."""

    def __init__(self, put: Put, refuse: Refuse) -> None:
        self._put, self._refuse = put, refuse
        self._known: OrderedDict[Need, None] = OrderedDict()
        self._under_way: dict[Need, Key] = {}
        self._carried_by: dict[Key, list[Need]] = {}
        self._held: dict[Key, list[Call]] = {}

    def accepted(self, key: Key) -> None:
        """This call arrived, and with it what it carried: whoever waited for that can go."""
        self._learn(self._arrived(key))
        self.send(self._held.pop(key, ()))

    def lacking(self, key: Key, call: Call | None) -> None:
        """The other end lacks something of this call, so it is not known there any more."""
        self._arrived(key)
        if call is not None:
            for need, _ in needs_of(call):
                self._known.pop(need, None)
        self.send(self._held.pop(key, ()))

    def send(self, calls: Iterable[Call]) -> None:
        """In batches; a call with large arguments travels alone, so that it holds up nobody. Never raises."""
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

    def skip(self, call: Call) -> None:
        """A method call that is not wanted any more; its number must arrive, or later ones would wait for it."""
        self._put(m.CALLS, {"calls": [{**_bare(call), "cancelled": True}]}, ())

    def _arrived(self, key: Key) -> list[Need]:
        """What this call carried is not under way any more."""
        needs = self._carried_by.pop(key, [])
        for need in needs:
            if self._under_way.get(need) == key:
                del self._under_way[need]
        return needs

    def _carrier_of(self, call: Call) -> Key | None:
        """The call that has something large of this one with it, and has not arrived yet."""
        for need, blob in needs_of(call):
            if need not in self._known and len(blob) > _CHEAP_BYTES and need in self._under_way:
                return self._under_way[need]
        return None

    def _weight(self, call: Call) -> int:
        return argument_bytes(call) + sum(len(blob) for need, blob in needs_of(call) if need not in self._known)

    def _try(self, batch: Sequence[Call]) -> None:
        """A message is put whole or not at all: when one call spoils a batch, send one by one and refuse that one."""
        try:
            self._batch(batch)
        except Exception as error:  # noqa: BLE001 - users' values meet the encoder here; it is that call's answer
            if len(batch) > 1:
                for call in batch:
                    self._try([call])
            elif batch[0].method is not None:  # its number must arrive, so the other end answers it
                self._put(m.CALLS, {"calls": [{**_bare(batch[0]), "refused": m.not_sendable_text(error)}]}, ())
            else:
                self._refuse((batch[0].task_id, batch[0].attempt), error)

    def _batch(self, batch: Sequence[Call]) -> None:
        blobs = Blobs(self._known)
        heads = [head_of(call, blobs) for call in batch]
        if self._put(m.CALLS, {"calls": heads}, blobs.data):
            self._learn(blobs.carried)
            return
        # Later calls may overtake this message.
        for need, key in blobs.carried.items():
            self._under_way[need] = key
            self._carried_by.setdefault(key, []).append(need)

    def _learn(self, needs: Iterable[Need]) -> None:
        """The other end has these. What is forgotten here is sent once more, or asked for if it was dropped there."""
        for need in needs:
            self._known[need] = None
        while len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)


def _bare(call: Call) -> dict[str, Any]:
    head = {"id": call.task_id, "attempt": call.attempt}
    return head if call.method is None else {**head, **method_of(call.method)}
