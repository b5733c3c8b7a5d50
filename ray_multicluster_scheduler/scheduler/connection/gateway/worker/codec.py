"""Encodes the byte strings between agent and worker: the order to run a call, and the envelope with its result.

Ray passes plain ``bytes`` without another copy, and pickles all other arguments one by one, which costs more than all
the rest of a short call. Large values are separate arguments. The agent never unpickles values of users.
"""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from ray_multicluster_scheduler.common.current_item import CurrentItem
from ray_multicluster_scheduler.common.frames import Blob, Pieces, bytes_in

BIG_BYTES = 1024 * 1024
"""A larger payload is not part of the envelope's bytes, and stays in the object store until it is sent."""
Envelope: TypeAlias = bytes | list[Any]
"""The return value of a call to the agent: the head and the payload; if that is large, a list of the head and its
pieces, as buffers that Ray copies into the object store once, and shows to the agent there."""
Key: TypeAlias = tuple[str, int]
"""Id of an item, and the number of its attempt."""
Homes: TypeAlias = tuple[list[str], str] | None
"""Home directories of submitters, and the directory to which paths under them are moved in arguments."""


class AgentEndpoint(NamedTuple):
    """The address where the agent listens for its workers, the secret that admits them, and its lock file (see
    process_lock)."""

    host: str
    port: int
    secret: str
    lease_s: float
    lock_file: str = ""


@dataclass(frozen=True, slots=True)
class ActorOrder:
    """The order to create an actor."""

    agent: AgentEndpoint
    item: CurrentItem
    homes: Homes
    detached: bool

    def packed(self) -> bytes:
        """The bytes for :meth:`unpacked`, in a worker."""
        return pickle.dumps((tuple(self.agent), _plain_item(self.item), self.homes, self.detached))

    @classmethod
    def unpacked(cls, data: bytes) -> ActorOrder:
        agent, item, homes, detached = pickle.loads(data)  # nosec B301 # from packed(), by Ray
        return cls(AgentEndpoint(*agent), CurrentItem(*item), homes, detached)


def _plain_item(item: CurrentItem) -> tuple[Any, ...]:
    return item.id, item.attempt, item.fence, item.cluster, item.member


class TaskOrder(NamedTuple):
    """The order to run a task. Function and arguments that are None are separate arguments of Ray's, in this order.
    ``sent_at``: see :meth:`WorkerChannel.begin`."""

    agent: AgentEndpoint
    item: CurrentItem
    sent_at: float
    homes: Homes
    digest: str
    short: bool
    function: bytes | None
    arguments: bytes | None

    def packed(self) -> bytes:
        """The bytes for :meth:`unpacked`, in a worker."""
        return pickle.dumps((tuple(self.agent), _plain_item(self.item), *self[2:]))

    @classmethod
    def unpacked(cls, data: bytes) -> TaskOrder:
        agent, item, *rest = pickle.loads(data)  # nosec B301 # from packed(), by Ray
        return cls(AgentEndpoint(*agent), CurrentItem(*item), *rest)


class MethodOrder(NamedTuple):
    """The order to call a method of an actor. Arguments that are None are a separate argument of Ray's."""

    key: Key
    method: str
    homes: Homes
    arguments: bytes | None

    def packed(self) -> bytes:
        """The bytes for :meth:`unpacked`, in a worker."""
        return pickle.dumps(tuple(self))

    @classmethod
    def unpacked(cls, data: bytes) -> MethodOrder:
        return cls(*pickle.loads(data))  # nosec B301 # from packed(), by Ray


_HEAD = struct.Struct("!I")
_PLAIN = struct.Struct("!Idd")
_PLAIN_MARK = 0xFFFFFFFF


def pack(head: dict[str, Any], payload: Sequence[Blob] = ()) -> Envelope:
    """An envelope: a small JSON head, and the pickled value or exception, in pieces."""
    text = json.dumps(head, separators=(",", ":")).encode()
    return _envelope((_HEAD.pack(len(text)), text), payload)


def pack_success(at: float, took: float, node: str, payload: Sequence[Blob]) -> Envelope:
    """The same for the most common head, in a tenth of the time."""
    name = node.encode()
    return _envelope((_PLAIN.pack(_PLAIN_MARK, at, took), bytes((len(name),)), name), payload)


def _envelope(head: tuple[bytes, ...], payload: Sequence[Blob]) -> Envelope:
    if bytes_in(payload) <= BIG_BYTES:
        return b"".join((*head, *payload))
    return [b"".join(head), *(pickle.PickleBuffer(piece) for piece in payload)]


def unpack(envelope: Envelope) -> tuple[dict[str, Any], Pieces]:
    """The head of an envelope, and its payload in pieces, without copies."""
    if isinstance(envelope, list):
        head, rest = _unpack(envelope[0])
        return head, [rest, *(memoryview(piece) for piece in envelope[1:])]
    head, rest = _unpack(envelope)
    return head, [rest]


def _unpack(data: bytes) -> tuple[dict[str, Any], memoryview]:
    view = memoryview(data)
    (length,) = _HEAD.unpack_from(view)
    if length == _PLAIN_MARK:
        _, at, took = _PLAIN.unpack_from(view)
        start = _PLAIN.size + 1 + data[_PLAIN.size]
        node = data[_PLAIN.size + 1 : start].decode()
        return {"status": "succeeded", "at": at, "node": node, "took": took}, view[start:]
    start = _HEAD.size + length
    return json.loads(bytes(view[_HEAD.size : start])), view[start:]
