"""One attempt of one actor, and how it is made of Ray's parts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import ray

from ray_multicluster_scheduler.common.current_item import CurrentItem
from ray_multicluster_scheduler.common.model.actor_description import ACTOR_NAMESPACE
from ray_multicluster_scheduler.scheduler.connection.gateway.actors.actor_call_order import Turns
from ray_multicluster_scheduler.scheduler.connection.gateway.actors.actor_shell import AsyncShell, Shell
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.call_records import CallRecord
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.calls import Calls
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.failures import cause_of
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.ray_options import actor_options
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.reports import Key
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.work_order import ActorOrder


class NoSuchActor(Exception):
    """There is none of this name that could be adopted."""

    code = "ACTOR_NOT_FOUND"


class NameTaken(Exception):
    """Another actor has this name."""

    code = "ACTOR_NAME_TAKEN"


@dataclass(slots=True)
class Actor:
    """What the agent knows of it."""

    record: CallRecord
    spec: dict[str, Any]
    handle: Any = None
    node: str = ""
    turns: Turns = field(default_factory=Turns)
    """Methods that were not given to Ray yet."""
    open: set[Key] = field(default_factory=set)
    """Methods that Ray owes an answer for."""
    looked_at: bool = False
    on_line: bool = False
    """Is there a line to its process, whose end would tell of its death?"""
    left: bool = False
    born_with: tuple[dict[str, Any], bytes] | None = None
    """What the constructor raised, if it did."""
    death: BaseException | None = None
    buried: bool = False

    @property
    def ending(self) -> bool:
        """Is there a reason to expect its death?"""
        return self.record.cancelled or self.left or self.born_with is not None

    def why_dead(self) -> str:
        """In words that follow "is dead:"."""
        if self.born_with is not None:
            return f"its constructor failed: {self.born_with[0].get('message', '')}"
        if self.record.cancelled:
            return "it was killed"
        if self.left:
            return "it left by itself"
        return cause_of(self.death)


class ActorMaker:
    """Talks to Ray: everything here may block, and belongs on a thread of the hands."""

    def __init__(self, cluster: str, own_modules: list[str], calls: Calls) -> None:
        self._cluster, self._own_modules, self._calls = cluster, own_modules, calls
        self._shells = {False: ray.remote(Shell), True: ray.remote(AsyncShell)}

    def make(self, actor: Actor) -> Any:
        """A handle. Raises NameTaken, NoSuchActor, and whatever Ray raises."""
        return self._find(actor) if actor.spec["adopt"] else self._new(actor)

    def attend(self, actor: Actor, handle: Any) -> Any:
        """A reference to what its process says of itself; an error when it is dead."""
        return handle.attend.remote(self._order(actor))

    def _new(self, actor: Actor) -> Any:
        record, spec = actor.record, actor.spec
        options = actor_options(record, spec, self._own_modules)
        cls = None if record.function is None else record.function.argument(ray.put)
        objects = [one.argument(ray.put) for one in record.objects]
        shell = self._shells[spec["asynchronous"]].options(**options)
        try:
            return shell.remote(self._order(actor), cls, record.arguments, *objects)
        except ValueError as error:
            if "already" in str(error):
                raise NameTaken(f"another actor of this cluster is called {spec['ray_name']!r} already") from None
            raise

    def _order(self, actor: Actor) -> bytes:
        record = actor.record
        item = CurrentItem(*(record.part_of or record.key), record.fence, self._cluster, record.member)
        return ActorOrder(self._calls.line, item, record.homes, actor.spec["detached"]).packed()

    def _find(self, actor: Actor) -> Any:
        name = actor.spec["ray_name"]
        try:
            return ray.get_actor(name, namespace=ACTOR_NAMESPACE)
        except ValueError:
            raise NoSuchActor(f"there is no actor {name!r} in namespace {ACTOR_NAMESPACE!r} of this cluster") from None


def end(handle: Any) -> None:
    """Kill it; on a thread of the hands. Also frees the name of one that is dead already."""
    try:
        ray.kill(handle, no_restart=True)
    except Exception as error:  # noqa: BLE001 - one that Ray does not know needs no killing
        print(f"rmcs agent: an actor cannot be killed: {error!r}", flush=True)
