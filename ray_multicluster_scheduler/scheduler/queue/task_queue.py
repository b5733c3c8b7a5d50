"""TaskQueue: the waiting items, grouped by shape, and the order in which they are considered.

People see a task queue and a job queue, each global plus one per preferred cluster. Internally, items of one shape and
priority form a *group*; a group that has to wait answers for all its items, so ten thousand equal items cost one
decision. Groups are ordered by priority, then by owner; an index finds an owner's first group that fits.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from math import inf

from ray_multicluster_scheduler.common.model import TaskDescription
from ray_multicluster_scheduler.scheduler.policy import reasons
from ray_multicluster_scheduler.scheduler.queue.fair_iteration import FairIteration
from ray_multicluster_scheduler.scheduler.queue.need_index import NO_NUMBER, NeedIndex
from ray_multicluster_scheduler.scheduler.queue.order import FifoOrder, Order
from ray_multicluster_scheduler.scheduler.queue.owner_account import Holding, OwnerAccount
from ray_multicluster_scheduler.scheduler.queue.owner_queue import FreeAmounts, OwnerQueue, PriorityLevel, any_amount
from ray_multicluster_scheduler.scheduler.queue.ranking import Ranking
from ray_multicluster_scheduler.scheduler.queue.shape import EligibilityClass, QueueKey, Shape, shape_of
from ray_multicluster_scheduler.scheduler.queue.shape_group import ShapeGroup

_FOREVER = 3600.0
_CREDIT = 2
_FADING = 0.999


class TaskQueue:
    """Enqueue, remove and pick take O(log n) for any number of items."""

    def __init__(self, order: Order | None = None, account: Callable[[str], OwnerAccount] | None = None) -> None:
        self.order = order or FifoOrder(_FOREVER)
        self._new_account = account or (lambda _: OwnerAccount())
        self._accounts: dict[str, OwnerAccount] = {}
        # Owners with items here, the smallest share first.
        self._owners_by_share: list[tuple[float, int, str]] = []
        self._newcomers = count()
        self._eligibility_counts: Counter[EligibilityClass] = Counter()
        self._maybe_idle: set[str] = set()
        self._most_used = 0.0  # the most that an owner had used at its turn, divided by its weight
        self._largest_item_use = 0.0  # of a recent item: shares cannot be more equal than that
        self.unblocked_owners: set[str] = set()
        """Owners whose items were skipped because of a limit that no longer applies."""
        self._levels: dict[float, PriorityLevel] = {}
        self._priorities: list[float] = []
        self._groups: dict[tuple[float, Shape], ShapeGroup] = {}
        self._group_of: dict[str, ShapeGroup] = {}
        self._iteration: dict[float, FairIteration] = {}  # by priority; parking is the only change that keeps it
        self._iteration_at = 0.0

    # ---- the waiting items

    def enqueue(self, task: TaskDescription, number: int, *, retry: bool = False) -> ShapeGroup:
        """Queue an item. ``number`` is its submission number; a retry keeps its number and so its position."""
        self._iteration.clear()
        priority = task.priority
        shape = shape_of(task, retry=retry)
        group = self._groups.get((priority, shape))
        if group is None:
            group = self._groups[priority, shape] = ShapeGroup(shape, priority)
            self._eligibility_counts[group.eligibility] += 1
        account = self.account(shape.owner)
        account.queued += 1
        if account.queued == 1:
            account.share_key = (self.order.share(account), next(self._newcomers), shape.owner)
            insort(self._owners_by_share, account.share_key)
        group.add(task.id, number, task.submitted_at)
        self._group_of[task.id] = group
        level = self._level(priority)
        level.ages.add(task.submitted_at)
        level.numbers.add(number)
        self._owner_queue(level, shape.owner).numbers.add(number)
        self._index_group(group)
        return group

    def remove(self, task_id: str) -> bool:
        """Remove an item. False if it was not queued."""
        group = self._group_of.pop(task_id, None)
        if group is None:
            return False
        self._iteration.clear()
        account = self.account(group.shape.owner)
        account.queued -= 1
        if not account.queued:
            del self._owners_by_share[bisect_left(self._owners_by_share, account.share_key)]
        self._maybe_idle.add(group.shape.owner)
        gone, level = group.remove(task_id), self._levels[group.priority]
        level.ages.remove(gone.since)
        level.numbers.remove(gone.number)
        level[group.shape.owner].numbers.remove(gone.number)
        if group:
            self._index_group(group)
        else:
            self._drop_group(group)
        return True

    def group_of(self, task_id: str) -> ShapeGroup | None:
        """The group in which an item waits, or None."""
        return self._group_of.get(task_id)

    def groups(self) -> Iterator[ShapeGroup]:
        """All groups; none is empty."""
        return iter(self._groups.values())

    def groups_of(self, owner: str) -> list[ShapeGroup]:
        return [group for group in self.groups() if group.shape.owner == owner]

    def blocked_owners(self) -> set[str]:
        """Owners with queued items that are paused or at a limit."""
        limited = (owner for owner, account in self._accounts.items() if account.queued and account.limited)
        paused = (owner for owner, account in self._accounts.items() if account.queued and account.paused is not None)
        return {*limited, *paused}

    @property
    def group_count(self) -> int:
        """The number of groups."""
        return len(self._groups)

    def waiting_only_for(self, cluster: str) -> list[str]:
        """Ids of the items that go to this cluster or nowhere."""
        pinned = (group for group in self.groups() if group.shape.fallback == "wait")
        return [task_id for group in pinned if group.shape.queue_key.cluster == cluster for task_id in group.task_ids()]

    def depths(self) -> dict[QueueKey, int]:
        """The number of waiting items per queue."""
        depths: dict[QueueKey, int] = {}
        for group in self.groups():
            depths[group.shape.queue_key] = depths.get(group.shape.queue_key, 0) + len(group)
        return depths

    def submission_numbers_by_owner(self, priority: float) -> dict[str, Ranking]:
        """The submission numbers of the items that wait with this priority, by owner."""
        return {owner: queue.numbers for owner, queue in self._levels.get(priority, {}).items()}

    def submission_numbers(self, priority: float) -> Ranking:
        """The same of all owners together. Raises KeyError if no item waits with this priority."""
        return self._levels[priority].numbers

    def submission_times(self) -> dict[float, Ranking]:
        """The submission times of waiting items, by priority."""
        return {priority: level.ages for priority, level in self._levels.items()}

    def __contains__(self, task_id: object) -> bool:
        return task_id in self._group_of

    def __len__(self) -> int:
        return len(self._group_of)

    # ---- the order

    def first(self, rooms: FreeAmounts, now: float, above: float | None = None) -> ShapeGroup | None:
        """The first group in order that fits ``rooms``; only priorities ``above``.

        Parked groups are left out, and groups of owners that may start nothing now.
        """
        if not any(free is None or free for free in map(rooms, self._eligibility_counts)):
            return None
        levels = (one for one in reversed(self._priorities) if above is None or one > above)
        return self._most_urgent(self._first_of_level(priority, rooms, now) for priority in levels)

    def next_in_iteration(self, now: float) -> ShapeGroup | None:
        """The same without regard to free capacity. The order of owners is computed once for consecutive calls with
        only parking between them."""
        if not self._iteration or self._iteration_at != now:
            self._iteration = {
                priority: self._start_iteration(priority, now) for priority in reversed(self._priorities)
            }
            self._iteration_at = now
        return self._most_urgent(turns.first() for turns in self._iteration.values())

    def _most_urgent(self, levels: Iterable[tuple[ShapeGroup, ShapeGroup] | None]) -> ShapeGroup | None:
        """The most urgent group, from each level's group in turn and its oldest group; highest level first."""
        best: ShapeGroup | None = None
        urgency = inf
        for found in levels:
            if found is None:
                continue
            turn, oldest = found
            if best is None:
                best = turn
            elif self.urgency(oldest) < urgency:
                best = oldest  # by its age alone, without turns
            urgency = min(urgency, self.urgency(oldest)) if len(self._priorities) > 1 else urgency
        return best

    def park(self, group: ShapeGroup) -> None:
        """Leave the group out of the scan until :meth:`unpark`."""
        group.parked = True
        if group:
            self._index_of(group).update(group, group.need, NO_NUMBER)
        turns = self._iteration.get(group.priority)
        if turns is not None:
            turns.next_of(group.shape.owner)

    def unpark(self, group: ShapeGroup) -> None:
        if group.parked:
            self._iteration.clear()
            group.parked = False
            if group:
                self._index_group(group)

    def urgency(self, group: ShapeGroup) -> float:
        """Urgency of the group's head; smaller is more urgent."""
        return self.order.urgency(group.priority, group.head().since)

    def refusal(self, group: ShapeGroup) -> tuple[str, str] | None:
        """Why no item of the group may start now, by its owner's limits: code and sentence; None if it may."""
        return self.refusal_of(group.shape.owner, group.need.get("GPU", 0.0))

    def refusal_of(self, owner: str, gpus: float) -> tuple[str, str] | None:
        """The same for an item of this owner that needs this number of GPUs. It creates no account."""
        account = self._accounts.get(owner) or self._new_account(owner)
        if account.paused is not None:
            why = f": {account.paused}" if account.paused else ""
            return reasons.OWNER_PAUSED, f"the queue of {owner or 'this owner'} is paused{why}"
        sentence = account.refusal(gpus)
        return None if sentence is None else (reasons.OWNER_LIMIT, f"{owner or 'this owner'}: {sentence}")

    def account(self, owner: str) -> OwnerAccount:
        account = self._accounts.get(owner)
        if account is None:
            account = self._accounts[owner] = self._new_account(owner)
        return account

    def _update_share(self, account: OwnerAccount) -> None:
        """The share of the account has changed: move it in the order of owners."""
        if not account.queued:
            return
        share, number, owner = account.share_key
        now = self.order.share(account)
        if now != share:
            del self._owners_by_share[bisect_left(self._owners_by_share, account.share_key)]
            account.share_key = (now, number, owner)
            insort(self._owners_by_share, account.share_key)

    def waiting_count(self, owner: str) -> int:
        """The number of queued items of this owner."""
        account = self._accounts.get(owner)
        return 0 if account is None else account.queued

    def pause(self, owner: str, reason: str) -> None:
        """Start no item of this owner until :meth:`resume`."""
        self._iteration.clear()
        self.account(owner).paused = reason

    def paused_owners(self) -> dict[str, str]:
        """The paused owners, with the reason."""
        return {owner: account.paused for owner, account in self._accounts.items() if account.paused is not None}

    def resume(self, owner: str) -> None:
        self._iteration.clear()
        self.account(owner).paused = None
        self._maybe_idle.add(owner)

    def limits_changed(self, owner: str, now: float) -> bool:
        """Apply the current limits to the owner's account; returns whether it holds more than they allow."""
        account = self._accounts.get(owner)
        if account is None:
            return False
        self._iteration.clear()
        account.set_limits_from(self._new_account(owner), now)
        self._update_share(account)
        return account.exceeds_limits

    def charge(self, owner: str, holding: Holding, now: float) -> None:
        """Count an item of this owner that is sent to a cluster."""
        self._iteration.clear()
        account = self.account(owner)
        account.set_minimum_used((self._most_used - _CREDIT * self._largest_item_use) * account.weight, now)
        self._most_used = max(self._most_used, account.used(now) / account.weight)
        account.charge(holding, now)
        self._update_share(account)

    def refund(self, owner: str, holding: Holding, now: float) -> None:
        """An item of this owner has left its cluster. If that lifts a limit, the owner's groups are considered
        again."""
        self._iteration.clear()
        account = self.account(owner)
        limited = account.limited
        account.refund(holding, now)
        self._update_share(account)
        self._largest_item_use = max(
            _FADING * self._largest_item_use, holding.cost * (now - holding.since) / account.weight
        )
        if limited and account.queued:
            self.unblocked_owners.add(owner)
        self._maybe_idle.add(owner)

    def drop_idle_accounts(self) -> None:
        """Forget owners without items. One that returns starts level with the others anyway."""
        for owner in self._maybe_idle:
            account = self._accounts.get(owner)
            if account is not None and account.idle and account.paused is None:
                del self._accounts[owner]
        self._maybe_idle.clear()

    def _first_of_level(self, priority: float, rooms: FreeAmounts, now: float) -> tuple[ShapeGroup, ShapeGroup] | None:
        """Among the groups that fit: that of the next owner in turn, and the oldest."""
        alone = len(self._priorities) == 1
        best: tuple[int, ShapeGroup] | None = None
        best_turn: tuple[float, ...] = ()
        oldest: tuple[float, ShapeGroup] | None = None
        for its_turn, queue in self._by_turns(self._levels[priority], now):
            if best is not None and alone and its_turn != best_turn:
                break  # all others come later
            first = queue.first(rooms)
            if first is None:
                continue
            if not alone and (oldest is None or self.urgency(first[1]) < oldest[0]):
                oldest = self.urgency(first[1]), first[1]
            if best is None or (its_turn == best_turn and first[0] < best[0]):
                best, best_turn = first, its_turn
        return None if best is None else (best[1], best[1] if oldest is None else oldest[1])

    def _start_iteration(self, priority: float, now: float) -> FairIteration:
        level = self._levels[priority]
        accounts = {owner: queue.account for owner, queue in level.items() if queue.account.may_start}
        turns = {owner: (one.share_key[0], self.order.turn(one, now)) for owner, one in accounts.items()}
        return FairIteration(turns, lambda owner: level[owner].first(any_amount), self.urgency)

    def _by_turns(self, level: dict[str, OwnerQueue], now: float) -> Iterator[tuple[tuple[float, ...], OwnerQueue]]:
        """The owners of a level that may start something, in turn order."""
        line, begin = self._owners_by_share, 0
        while begin < len(line):
            share, end = line[begin][0], begin + 1
            while end < len(line) and line[end][0] == share:
                end += 1
            equals = [level[owner] for _, _, owner in line[begin:end] if owner in level]
            if len(equals) > 1:  # else the turn is unique
                turns = sorted((self.order.turn(queue.account, now), at) for at, queue in enumerate(equals))
                yield from ((turn, equals[at]) for turn, at in turns if equals[at].account.may_start)
            elif equals and equals[0].account.may_start:
                yield (share,), equals[0]
            begin = end

    # ---- indexes

    def _index_of(self, group: ShapeGroup) -> NeedIndex:
        queue = self._owner_queue(self._level(group.priority), group.shape.owner)
        index = queue.indexes.get(group.eligibility)
        if index is None:
            index = queue.indexes[group.eligibility] = NeedIndex(group.eligibility.names)
        return index

    def _level(self, priority: float) -> PriorityLevel:
        level = self._levels.get(priority)
        if level is None:
            level = self._levels[priority] = PriorityLevel()
            insort(self._priorities, priority)
        return level

    def _owner_queue(self, level: PriorityLevel, owner: str) -> OwnerQueue:
        queue = level.get(owner)
        if queue is None:
            queue = level[owner] = OwnerQueue(self.account(owner))
        return queue

    def _index_group(self, group: ShapeGroup) -> None:
        if not group.parked:
            self._index_of(group).update(group, group.need, group.head().number)

    def _drop_group(self, group: ShapeGroup) -> None:
        """Remove an empty group from all indexes."""
        del self._groups[group.priority, group.shape]
        self._eligibility_counts[group.eligibility] -= 1
        if not self._eligibility_counts[group.eligibility]:
            del self._eligibility_counts[group.eligibility]
        level = self._levels[group.priority]
        indexes = level[group.shape.owner].indexes
        indexes[group.eligibility].remove(group)
        if not indexes[group.eligibility]:
            del indexes[group.eligibility]
        if not indexes:
            del level[group.shape.owner]
        if not level:
            del self._levels[group.priority]
            self._priorities.remove(group.priority)
