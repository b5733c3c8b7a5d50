"""Calls on their way to one connection: in batches, each function once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from ray_multicluster_scheduler.common.frames import CHUNK_BYTES
from ray_multicluster_scheduler.scheduler.connection.cluster_link import Call
from ray_multicluster_scheduler.scheduler.connection.gateway import messages as m
from ray_multicluster_scheduler.scheduler.connection.outstanding import Key

_BATCH_CALLS = 256

Put: TypeAlias = Callable[[str, dict[str, Any], Sequence[bytes]], bool]
"""Puts a message into the outbox; True if no later message can overtake it. Raises for what cannot be encoded."""
Refuse: TypeAlias = Callable[[Key, Exception], None]
"""Answers a call that cannot be sent."""


class CallSender:
    """Remembers what the other end of this connection knows already; a new connection needs a new one."""

    def __init__(self, put: Put, refuse: Refuse) -> None:
        self._put, self._refuse = put, refuse
        self._known: set[str] = set()
        self._carriers: dict[Key, str] = {}

    def accepted(self, key: Key) -> None:
        """This call arrived, and with it the function that it carried."""
        if key in self._carriers:
            self._known.add(self._carriers.pop(key))

    def forget(self, digest: str) -> None:
        """The other end has this function no more."""
        self._known.discard(digest)

    def send(self, calls: Sequence[Call]) -> None:
        """In batches; a call with large arguments travels alone, so that it holds up nobody. Never raises."""
        batch: list[Call] = []
        for call in calls:
            if len(call.arguments) + len(call.function) > CHUNK_BYTES:
                self._try([call])
                continue
            batch.append(call)
            if len(batch) == _BATCH_CALLS:
                self._try(batch)
                batch = []
        if batch:
            self._try(batch)

    def _try(self, batch: Sequence[Call]) -> None:
        """A message is put whole or not at all: when one call spoils a batch, send one by one and refuse that one."""
        try:
            self._batch(batch)
        except Exception as error:  # noqa: BLE001 - users' values meet the encoder here; it is that call's answer
            if len(batch) == 1:
                self._refuse((batch[0].task_id, batch[0].attempt), error)
                return
            for call in batch:
                self._try([call])

    def _batch(self, batch: Sequence[Call]) -> None:
        heads: list[dict[str, Any]] = []
        blobs: list[bytes] = []
        carried: dict[str, Key] = {}
        for call in batch:
            function_at = None
            if call.function_digest not in self._known and call.function_digest not in carried:
                carried[call.function_digest] = (call.task_id, call.attempt)
                function_at = len(blobs)
                blobs.append(call.function)
            heads.append(
                {
                    "id": call.task_id,
                    "attempt": call.attempt,
                    "fence": call.fence,
                    "name": call.name,
                    "fn": call.function_digest,
                    "fn_blob": function_at,
                    "args_blob": len(blobs),
                    "res": dict(call.resources),
                    "env": dict(call.runtime_env),
                    "homes": list(call.homes),
                    "home": call.target_home,
                }
            )
            blobs.append(call.arguments)
        if self._put(m.CALLS, {"calls": heads}, blobs):
            self._known.update(carried)
        else:
            # Later calls may overtake this message, so they bring their function along until it is known there.
            self._carriers.update((key, digest) for digest, key in carried.items())
