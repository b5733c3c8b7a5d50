"""The actors of a gang as their program sees them: each an actor to be called, all of them one item to the brain."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ray_multicluster_scheduler.app.client_api.actors.actor_handle import ActorHandle
from ray_multicluster_scheduler.app.client_api.actors.class_methods import MethodShape
from ray_multicluster_scheduler.common.current_item import member_id
from ray_multicluster_scheduler.common.model import ActorDescription, MemberDescription, TaskDescription
from ray_multicluster_scheduler.control_plane.runtime.interface import ControlPlane
from ray_multicluster_scheduler.control_plane.runtime.item import Item, Outcome


class MemberItem(Item):
    """One actor of a gang: it goes where the gang goes, and its end is the gang's."""

    __slots__ = ("_following", "_gang")

    def __init__(self, gang: Item, index: int, member: MemberDescription) -> None:
        name = member_id(gang.id, index)
        actor = ActorDescription(ray_name=name, placement=member.requirements, asynchronous=member.asynchronous)
        super().__init__(
            TaskDescription(
                id=name,
                kind="actor",
                name=member.name,
                owner=gang.task.owner,
                requirements=member.requirements,
                actor=actor,
            )
        )
        self._gang = gang
        self._following = threading.Lock()
        gang.watch_steps(self._follow)
        self._follow(gang)

    @property
    def whole(self) -> str:
        return self._gang.id

    def _follow(self, gang: Item) -> None:
        with self._following:  # looked at in here: of two threads that tell of it, the later one then tells the newest
            step, outcome = gang.transition, gang.outcome
            if outcome is None and step is not None:
                self.moved(step._replace(task_id=self.id))
        if outcome is not None:
            gang.unwatch_steps(self._follow)
            self.ended(Outcome(replace(outcome.completion, task_id=self.id), outcome.result, outcome.origin))


def handles_of(gang: Item, runtime: ControlPlane, methods: Sequence[Mapping[str, MethodShape]]) -> list[ActorHandle]:
    """One for each member, in their order."""
    described = gang.task.gang
    members = () if described is None else described.members
    items = [MemberItem(gang, index, member) for index, member in enumerate(members)]
    return [ActorHandle(runtime.calls_of(item), runtime, of) for item, of in zip(items, methods, strict=True)]
