"""GangRunner: runs gangs, each in one placement group: all members or none, and one result for all of them.

Used by ``Agent``. The placement group is always removed before the result is reported. When an agent ends, Ray removes
the groups that it created.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ray_multicluster_scheduler.common.current_item import CurrentItem
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.actors import ActorRunner
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.call_records import CallRecord, GangSpec
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.calls import CallRunner
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.failures import describe
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.gang_attempt import GangAttempt
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.ray_options import task_options
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.ray_threads import RayThreads
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.codec import Key


class GangRunner:
    """Runs on the event loop, except where noted. ``on_started`` is called once all members of a gang run,
    with the time and their nodes."""

    def __init__(
        self,
        threads: RayThreads,
        calls: CallRunner,
        actors: ActorRunner,
        on_started: Callable[[CallRecord, float, str], None],
    ) -> None:
        self._threads, self._calls, self._actors, self._on_started = threads, calls, actors, on_started
        self._gangs: dict[Key, GangAttempt] = {}

    def create(self, record: CallRecord, spec: GangSpec) -> None:
        """Accept the call of a gang."""
        self._calls.records[record.key] = record
        gang = self._gangs[record.key] = GangAttempt(record, spec.members, spec.of)
        for member in spec.members:
            member.on_end = partial(self._member_ended, gang)
        self._threads.run_in_pool(self._reserve, gang, spec.strategy)

    def cancel(self, record: CallRecord, force: bool) -> None:
        """Cancel all members, each as a task: with an interrupt first."""
        record.cancelled, record.force = True, record.force or force
        gang = self._gangs.get(record.key)
        if gang is None or gang.over:
            return
        if gang.submitted:
            self._end_members(gang, force)
        elif gang.placement_group is not None:
            self._finish(gang)

    def recall(self, record: CallRecord) -> None:
        """Take back a gang of which no member has begun: each of them will ask us."""
        gang = self._gangs.get(record.key)
        if gang is None or gang.over or record.cancelled or record.may_have_begun:
            return
        self.cancel(record, force=False)
        self._calls.conclude(record, {"status": "cancelled", "code": m.RECALLED})

    @property
    def actor_gangs(self) -> int:
        """The number of gangs of actors, which may be idle for days."""
        return sum(1 for gang in self._gangs.values() if gang.of == "actor")

    def started(self, key: Key, member: int, at: float, node: str) -> None:
        """A member runs."""
        gang = self._gangs.get(key)
        if gang is None or gang.over or member in gang.starts:
            return
        gang.starts[member] = (at, node)
        started = gang.start_of_all()
        if started is not None:
            self._on_started(gang.record, *started)

    def forget(self, keys: Iterable[Key]) -> None:
        """The control plane has acknowledged these results."""
        for key in keys:
            gang = self._gangs.pop(key, None)
            if gang is not None and gang.of == "actor":
                members = [member.key for member in gang.members]
                self._calls.forget(members)
                self._actors.forget(members)

    # Start ------------------------------------------------------------------------------------------------

    def _reserve(self, gang: GangAttempt, strategy: str) -> None:
        """On a thread: create the placement group, which Ray reserves all at once."""
        task_id, attempt = gang.record.key
        bundles = [{name: amount for name, amount in one.resources.items() if amount} for one in gang.members]
        try:
            group = placement_group(bundles, strategy, name=f"rmcs-{task_id}-{attempt}")
            self._threads.run_on_loop(self._group_created, gang, group)
            ready = group.ready()
        except Exception as error:  # noqa: BLE001 - any error of Ray is this gang's failure
            self._threads.run_on_loop(self._refused, gang, error)
            return
        self._threads.watch(ready, partial(self._reserved, gang))

    def _group_created(self, gang: GangAttempt, group: Any) -> None:
        gang.placement_group = group
        if gang.record.cancelled:
            self._finish(gang)

    def _refused(self, gang: GangAttempt, error: BaseException | None) -> None:
        gang.problem = describe(error, gang.record.cancelled)
        self._finish(gang)

    def _reserved(self, gang: GangAttempt, _: object, error: BaseException | None) -> None:
        if gang.over:
            return
        if error is not None:
            self._refused(gang, error)
            return
        gang.submitted = True
        if gang.of == "task":
            self._threads.run_in_pool(self._submit, gang)
            return
        for index, member in enumerate(gang.members):
            self._actors.create(member, _actor_spec(member, _bundle(gang, index)))

    def _submit(self, gang: GangAttempt) -> None:
        """On a thread: submit each member to Ray, in its own bundle."""
        for index, member in enumerate(gang.members):
            if gang.record.cancelled or gang.first_ended is not None:
                self._threads.run_on_loop(self._calls.conclude, member, {"status": "cancelled"})
                continue
            try:
                item = CurrentItem(*gang.record.key, gang.record.fence, self._calls.cluster, index)
                options = {**task_options(member, self._calls.own_modules), "scheduling_strategy": _bundle(gang, index)}
                if self._calls.submit_to_ray(member, item, self._calls.wrapper.options(**options)):
                    self._threads.watch(member.ref, partial(self._calls.complete, member))
                else:
                    self._threads.run_on_loop(self._calls.cancelled_unsent, member)
            except Exception as error:  # noqa: BLE001 - any error of Ray is this member's failure, and the gang's
                self._threads.run_on_loop(self._calls.complete, member, None, error)
        self._threads.run_on_loop(self._members_submitted, gang)

    def _members_submitted(self, gang: GangAttempt) -> None:
        """It may have been cancelled while its members were being submitted."""
        if gang.first_ended is not None or gang.record.cancelled:
            self._end_members(gang, gang.record.force)

    # End --------------------------------------------------------------------------------------------------

    def _member_ended(self, gang: GangAttempt, member: CallRecord) -> None:
        head = member.head or {}
        if "at" in head and member.member is not None:
            gang.starts.setdefault(member.member, (float(head["at"]), str(head["node"])))
        ends_all = gang.of == "actor" or head["status"] != "succeeded"
        if ends_all and gang.first_ended is None and not gang.record.cancelled:
            gang.first_ended = member
            self._end_members(gang, force=False)
        if gang.all_ended():
            self._finish(gang)

    def _end_members(self, gang: GangAttempt, force: bool) -> None:
        for member in gang.members:
            if member.head is not None:
                continue
            if gang.of == "actor":
                self._actors.cancel(member)
                continue
            member.cancelled = True
            if member.ref is not None:
                self._calls.stop(member, force)

    def _finish(self, gang: GangAttempt) -> None:
        """Once: remove the placement group, then report the result."""
        if gang.over:
            return
        gang.over = True
        self._threads.run_in_pool(self._remove_group_and_conclude, gang)

    def _remove_group_and_conclude(self, gang: GangAttempt) -> None:
        """On a thread."""
        group = gang.placement_group
        try:
            if group is not None:
                remove_placement_group(group)
        except Exception as error:  # noqa: BLE001 - the result is valid; the resources are lost until the agent ends
            print(f"rmcs agent: the placement group {group.id.hex()} cannot be removed: {error!r}", flush=True)
        self._threads.run_on_loop(self._conclude, gang)

    def _conclude(self, gang: GangAttempt) -> None:
        if gang.record.head is None:  # else it was recalled
            self._calls.conclude(gang.record, *gang.result())


def _bundle(gang: GangAttempt, index: int) -> PlacementGroupSchedulingStrategy:
    """The member's own bundle. Tasks that the member submits are placed outside the group, as for other items."""
    return PlacementGroupSchedulingStrategy(gang.placement_group, placement_group_bundle_index=index)


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
