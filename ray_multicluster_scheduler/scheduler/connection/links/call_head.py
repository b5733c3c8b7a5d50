"""A call as a message's head and attachments. What is empty is left out."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any, Literal, TypeAlias

from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import (
    Call,
    MemberCall,
    MethodCall,
    NewActor,
    NewGang,
)
from ray_multicluster_scheduler.scheduler.connection.links.pending_calls import Key

Need: TypeAlias = tuple[Literal["fn", "obj"], str]
"""Something that several calls use, by its digest."""


def needs_of(call: Call) -> Iterator[tuple[Need, bytes]]:
    """What a call uses that others may use as well; a method has its function over there."""
    if call.gang is not None:
        for member in call.gang.members:
            yield from _needs_of_member(member)
        return
    if call.method is None:
        yield ("fn", call.function_digest), call.function
    for one in call.objects:
        yield ("obj", one.digest), one.data


def _needs_of_member(member: MemberCall) -> Iterator[tuple[Need, bytes]]:
    yield ("fn", member.function_digest), member.function
    for one in member.objects:
        yield ("obj", one.digest), one.data


def argument_bytes(call: Call) -> int:
    """What travels for this call alone."""
    members = () if call.gang is None else call.gang.members
    return len(call.arguments) + sum(len(member.arguments) for member in members)


class Blobs:
    """The attachments of one message, each shared one once and none that is known over there."""

    def __init__(self, known: Container[Need]) -> None:
        self._known = known
        self.data: list[bytes] = []
        self.carried: dict[Need, Key] = {}

    def add(self, blob: bytes) -> int:
        """Returns its position."""
        self.data.append(blob)
        return len(self.data) - 1

    def share(self, need: Need, blob: bytes, key: Key) -> int | None:
        """None when the other end has it by then."""
        if need in self._known or need in self.carried:
            return None
        self.carried[need] = key
        return self.add(blob)


def head_of(call: Call, blobs: Blobs) -> dict[str, Any]:
    """The entry of CALLS, as documented in gateway/link/messages.py."""
    key = (call.task_id, call.attempt)
    head: dict[str, Any] = {"id": call.task_id, "attempt": call.attempt, "fence": call.fence, "name": call.name}
    if call.gang is not None:
        head["gang"] = _gang(call.gang, blobs, key)
    else:
        head |= _shared(needs_of(call), blobs, key)
        head["args_blob"] = blobs.add(call.arguments)
    head["res"] = dict(call.resources)
    if call.runtime_env:
        head["env"] = dict(call.runtime_env)
    if call.target_home:
        head["homes"], head["home"] = list(call.homes), call.target_home
    if call.ahead:
        head["ahead"] = call.ahead
    if call.keep:
        head["keep"] = True
    if call.short:
        head["short"] = True
    if call.actor is not None:
        head["actor"] = _actor(call.actor)
    if call.method is not None:
        head |= method_of(call.method)
    return head


def _shared(needs: Iterator[tuple[Need, bytes]], blobs: Blobs, key: Key) -> dict[str, Any]:
    head: dict[str, Any] = {}
    for (kind, digest), blob in needs:
        position = blobs.share((kind, digest), blob, key)
        if kind == "fn":
            head["fn"], head["fn_blob"] = digest, position
        else:
            head.setdefault("objects", []).append([digest, position])
    return head


def _gang(gang: NewGang, blobs: Blobs, key: Key) -> dict[str, Any]:
    members = []
    for member in gang.members:
        head = {"name": member.name, **_shared(_needs_of_member(member), blobs, key)}
        head |= {"args_blob": blobs.add(member.arguments), "res": dict(member.resources)}
        members.append({**head, "asynchronous": True} if member.asynchronous else head)
    return {"strategy": gang.strategy, "of": gang.of, "members": members}


def method_of(method: MethodCall) -> dict[str, Any]:
    """Whose method, which, and its number among those of which life."""
    head: dict[str, Any] = {"method": [method.actor_id, method.actor_attempt, method.method, method.number]}
    return {**head, "life": method.life} if method.life else head


def _actor(actor: NewActor) -> dict[str, Any]:
    return {
        "ray_name": actor.ray_name,
        "placement": dict(actor.placement),
        "detached": actor.detached,
        "adopt": actor.adopt,
        "max_restarts": actor.max_restarts,
        "max_concurrency": actor.max_concurrency,
        "asynchronous": actor.asynchronous,
    }
