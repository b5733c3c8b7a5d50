"""Actor handles of the members of a gang. The scheduler knows all members as one item; each is called by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ray_multicluster_scheduler.app.client_api.actors.actor_handle import ActorHandle
from ray_multicluster_scheduler.app.client_api.actors.class_methods import MethodShape
from ray_multicluster_scheduler.control_plane.runtime.interface import ControlPlane
from ray_multicluster_scheduler.control_plane.runtime.item import Item, MemberItem


def handles_of(gang: Item, runtime: ControlPlane, methods: Sequence[Mapping[str, MethodShape]]) -> list[ActorHandle]:
    """One for each member, in their order."""
    described = gang.task.gang
    members = () if described is None else described.members
    items = [MemberItem(gang, index, member) for index, member in enumerate(members)]
    return [ActorHandle(runtime.calls_of(item), runtime, of) for item, of in zip(items, methods, strict=True)]
