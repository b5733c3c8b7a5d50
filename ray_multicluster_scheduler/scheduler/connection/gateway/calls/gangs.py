"""The gangs of this agent: one placement group each, all members in it or none, and one answer for all of them.

The group is removed before the answer is given, in whatever way the gang ended. With the agent itself Ray removes the
groups that it made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ray_multicluster_scheduler.common.current_item import CurrentItem
from ray_multicluster_scheduler.scheduler.connection.gateway.actors.actors import Actors
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.call_records import CallRecord, Gang
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.calls import Calls
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.failures import describe
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.gang_life import GangLife
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.ray_executor import Hands
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.ray_options import task_options
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.reports import Key
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.work_order import TaskOrder
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.worker import run_call

Ready = Callable[[CallRecord, float, str], None]
"""Tells that all members run, since when, and on which nodes."""


class Gangs:
    """Everything here happens on the event loop unless said otherwise."""

    def __init__(
        self, cluster: str, own_modules: list[str], hands: Hands, calls: Calls, actors: Actors, ready: Ready
    ) -> None:
        self._cluster, self._own_modules = cluster, own_modules
        self._hands, self._calls, self._actors, self._ready = hands, calls, actors, ready
        self._wrapper = ray.remote(run_call)
        self._gangs: dict[Key, GangLife] = {}

    def make(self, record: CallRecord, spec: Gang) -> None:
        """Take the call that is a gang's life."""
        self._calls.records[record.key] = record
        gang = self._gangs[record.key] = GangLife(record, spec.members, spec.of)
        for member in spec.members:
            member.told = partial(self._member_ended, gang)
        self._hands.beside(partial(self._reserve, gang, spec.strategy))

    def cancel(self, record: CallRecord, force: bool) -> None:
        """End all of it: as a task each, an interrupt first."""
        record.cancelled, record.force = True, record.force or force
        gang = self._gangs.get(record.key)
        if gang is None or gang.over:
            return
        if gang.given:
            self._end_members(gang, force)
        elif gang.group is not None:
            self._finish(gang)

    @property
    def of_actors(self) -> int:
        """How many gangs of actors there are, which are no reason to look often: they may do nothing for days."""
        return sum(1 for gang in self._gangs.values() if gang.of == "actor")

    def started(self, key: Key, member: int, at: float, node: str) -> None:
        """A member was seen to run."""
        gang = self._gangs.get(key)
        if gang is None or gang.over or member in gang.starts:
            return
        gang.starts[member] = (at, node)
        together = gang.start_of_all()
        if together is not None:
            self._ready(gang.record, *together)

    def forget(self, keys: Iterable[Key]) -> None:
        """The control plane knows that these are over."""
        for key in keys:
            gang = self._gangs.pop(key, None)
            if gang is not None and gang.of == "actor":
                members = [member.key for member in gang.members]
                self._calls.forget(members)
                self._actors.forget(members)

    # Beginning --------------------------------------------------------------------------------------------

    def _reserve(self, gang: GangLife, strategy: str) -> None:
        """On a thread of the hands: ask Ray for the places, which it gives all at once."""
        task_id, attempt = gang.record.key
        bundles = [{name: amount for name, amount in one.resources.items() if amount} for one in gang.members]
        try:
            group = placement_group(bundles, strategy, name=f"rmcs-{task_id}-{attempt}")
            self._hands.back(partial(self._reserved, gang, group))
            ready = group.ready()
        except Exception as error:  # noqa: BLE001 - whatever Ray refuses is this gang's answer
            self._hands.back(partial(self._refused, gang, error))
            return
        self._hands.watch(ready, partial(self._places_are_there, gang))

    def _reserved(self, gang: GangLife, group: Any) -> None:
        gang.group = group
        if gang.record.cancelled:
            self._finish(gang)

    def _refused(self, gang: GangLife, error: BaseException | None) -> None:
        gang.problem = describe(error, gang.record.cancelled)
        self._finish(gang)

    def _places_are_there(self, gang: GangLife, _: object, error: BaseException | None) -> None:
        if gang.over:
            return
        if error is not None:
            self._refused(gang, error)
            return
        gang.given = True
        if gang.of == "task":
            self._hands.beside(partial(self._give, gang))
            return
        for index, member in enumerate(gang.members):
            self._actors.make(member, _actor_spec(member, _place(gang.group, index)))

    def _give(self, gang: GangLife) -> None:
        """On a thread of the hands: one call of Ray's for each member, in its own bundle."""
        for index, member in enumerate(gang.members):
            if gang.record.cancelled or gang.first is not None:
                self._hands.back(partial(self._calls.conclude, member, {"status": "cancelled"}))
                continue
            try:
                self._submit(gang, index, member)
            except Exception as error:  # noqa: BLE001 - whatever Ray refuses is this member's end, and so the gang's
                self._hands.back(partial(self._calls.complete, member, None, error))
        self._hands.back(partial(self._was_given, gang))

    def _submit(self, gang: GangLife, index: int, member: CallRecord) -> None:
        task_id, attempt = gang.record.key
        item = CurrentItem(task_id, attempt, gang.record.fence, self._cluster, index)
        inline, beside = member.given(ray.put)
        order = TaskOrder(self._calls.line, item, member.homes, member.digest, False, *inline).packed()
        options = {**task_options(member, self._own_modules), "scheduling_strategy": _place(gang.group, index)}
        member.ref = self._wrapper.options(**options).remote(order, *beside)
        member.arguments, member.function, member.objects = b"", None, []  # Ray has them
        self._hands.watch(member.ref, partial(self._calls.complete, member))

    def _was_given(self, gang: GangLife) -> None:
        """Its end may have been asked for while its members were on their way to Ray."""
        if gang.first is not None or gang.record.cancelled:
            self._end_members(gang, gang.record.force)

    # The end ----------------------------------------------------------------------------------------------

    def _member_ended(self, gang: GangLife, member: CallRecord) -> None:
        head = member.head or {}
        if "at" in head and member.member is not None:
            gang.starts.setdefault(member.member, (float(head["at"]), str(head["node"])))
        ends_all = gang.of == "actor" or head["status"] != "succeeded"
        if ends_all and gang.first is None and not gang.record.cancelled:
            gang.first = member
            self._end_members(gang, force=False)
        if gang.all_ended():
            self._finish(gang)

    def _end_members(self, gang: GangLife, force: bool) -> None:
        for member in gang.members:
            if member.head is not None:
                continue
            if gang.of == "actor":
                self._actors.cancel(member)
                continue
            member.cancelled = True
            if member.ref is not None:
                self._calls.stop(member, force)

    def _finish(self, gang: GangLife) -> None:
        """Once: give the places back, then answer."""
        if gang.over:
            return
        gang.over = True
        group = gang.group

        def give_back() -> None:
            if group is not None:
                _remove(group)
            self._hands.back(partial(self._calls.conclude, gang.record, *gang.answer()))

        self._hands.beside(give_back)


def _place(group: Any, index: int) -> PlacementGroupSchedulingStrategy:
    """Its own bundle. What a member submits itself goes elsewhere, as what other items submit does."""
    return PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)


def _actor_spec(member: CallRecord, place: PlacementGroupSchedulingStrategy) -> dict[str, Any]:
    return {
        "ray_name": member.key[0],
        "placement": member.resources,
        "detached": False,
        "adopt": False,
        "max_restarts": 0,
        "max_concurrency": None,
        "asynchronous": member.asynchronous,
        "place": place,
    }


def _remove(group: Any) -> None:
    """On a thread of the hands."""
    try:
        remove_placement_group(group)
    except Exception as error:  # noqa: BLE001 - its places are lost until the agent ends; its answer is not
        print(f"rmcs agent: the placement group {group.id.hex()} cannot be removed: {error!r}", flush=True)
