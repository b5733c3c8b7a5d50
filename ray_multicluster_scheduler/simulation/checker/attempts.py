"""at_most_one_live_attempt, and fences_only_grow."""

from __future__ import annotations

from collections.abc import Sequence

from ray_multicluster_scheduler.scheduler.lifecycle.events import Submitted
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Dispatch
from ray_multicluster_scheduler.simulation.checker.history_index import Story
from ray_multicluster_scheduler.simulation.checker.property import Property
from ray_multicluster_scheduler.simulation.history import Began, Line, Over


class AtMostOneLiveAttempt(Property):
    """By the truth of the clusters, leases included. A lost Ray job whose owner said ``retry_lost`` is the exception
    that its owner asked for."""

    name = "at_most_one_live_attempt"
    sentence = "At no moment do two attempts of one item run, on whatever clusters, whatever was lost or cut."

    def read(self, story: Story, history: Sequence[Line]) -> None:
        may_run_twice: set[str] = set()
        alive: dict[str, dict[int, str]] = {}
        for entry in story.some(Submitted, Began, Over):
            match entry.what:
                case Submitted(task=task) if task.kind == "job" and task.retry_lost:
                    may_run_twice.add(task.id)
                case Began(task_id=task_id, attempt=attempt, cluster=cluster):
                    others = alive.setdefault(task_id, {})
                    if others and task_id not in may_run_twice:
                        first, where = next(iter(others.items()))
                        self.accuse(
                            entry,
                            f"attempt {attempt} of {task_id} begins on {cluster}, and attempt {first} runs on {where}",
                        )
                    others[attempt] = cluster
                case Over(task_id=task_id, attempt=attempt):
                    alive.get(task_id, {}).pop(attempt, None)


class FencesOnlyGrow(Property):
    """By what is dispatched; and no attempt number is used twice or left out. What a control plane that came back sends
    ``again`` keeps its number and its fence, which nobody else has."""

    name = "fences_only_grow"
    sentence = "Each dispatch carries a larger fence than every one before it, and an item's attempts count 1, 2, 3, …"

    def read(self, story: Story, history: Sequence[Line]) -> None:
        last, attempts, fences = 0, dict[str, int](), dict[int, tuple[str, int]]()
        for entry in story.some(Dispatch):
            order: Dispatch = entry.what
            key = (order.task_id, order.attempt)
            if fences.setdefault(order.fence, key) != key or (order.fence <= last and not order.again):
                self.accuse(entry, f"{order.task_id} is dispatched with fence {order.fence} after {last}")
            last = max(last, order.fence)
            before = attempts.get(order.task_id, 0)
            if order.attempt != before + 1 and not (order.again and order.attempt == before):
                self.accuse(entry, f"attempt {order.attempt} of {order.task_id} follows {before}")
            attempts[order.task_id] = order.attempt
