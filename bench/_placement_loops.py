"""The timed loops of the placement benchmark, and their figures.

Only calls of ``SchedulerMachine.handle`` are timed, one by one; generating items and reading views is not. Iterations
whose decision is checked are not timed at all, because reading views may warm caches.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import psutil

from bench._naive import evaluate
from bench._placement_fleet import PYTHON, SHAPES, item, new_shape, snapshot
from bench._placement_harness import Clock, Placed, PlacementHarness, Sample
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.control_plane.config.settings import Settings
from ray_multicluster_scheduler.scheduler.lifecycle import events

_SLICES = 5
_FULL_AFTER = 100  # this many consecutive items were not placed

Turn = Callable[[bool], Sample | None]
"""One iteration; optionally it also keeps a sample of its decision and its input."""


def cold(clusters: int, seconds: float, samples: int, clock: Clock = time.perf_counter_ns) -> dict[str, Any]:
    """Every item is of a new shape, the queue is empty, and the ledger changes before each decision.

    In each iteration: AttemptFinished of some item; in each fourth also SnapshotTaken of some cluster; then Submitted,
    which places the item, and its DispatchAccepted. All of them count.
    """
    harness = PlacementHarness(clusters, Settings(submission_interval_s=0), clock)
    chance = random.Random(clusters)
    numbers = iter(range(10**9))

    def submit() -> None:
        number = next(numbers)
        harness.submit(new_shape(f"t{number}", number, harness.now))

    def turn(sampled: bool) -> Sample | None:
        ended = harness.pop_running(chance.randrange(len(harness.running)))
        harness.finish(ended)
        harness.accept_dispatches()
        if harness.placements % 4 == 0:
            _change_other_usage(harness, chance)
        views, last_placed = (harness.views(), dict(harness.last_placed)) if sampled else ([], {})
        number = next(numbers)
        harness.submitted += 1
        harness.feed(events.Submitted(new_shape(f"t{number}", number, harness.now)))
        sample = harness.sample(views, last_placed) if sampled else None
        harness.accept_dispatches()
        harness.forget(ended)
        return sample

    for _ in range(_cpus(harness) // 4):
        submit()
    return {"clusters": clusters, **_figures(harness, turn, seconds, samples)}


def steady(
    clusters: int, queued: int, seconds: float, samples: int, clock: Clock = time.perf_counter_ns, pools: int = 0
) -> dict[str, Any]:
    """A full fleet and a full queue of :data:`SHAPES` shapes; one completion, one pass, one dispatch.

    In each iteration: AttemptFinished (with its start, so no Started), which dispatches another item; that one's
    DispatchAccepted; and Submitted of a new one of the same shape. All of them count. With ``pools``, each item belongs
    to one of so many, and no decision is checked.
    """
    harness = PlacementHarness(clusters, Settings(max_queue=10 * queued), clock, pools)
    chance = random.Random(clusters)
    numbers = iter(range(10**9))

    def one_of(shape: int) -> Any:
        return item(f"t{next(numbers)}/{shape}", shape, harness.clusters, harness.now, pools)

    def refill(placed: Iterable[Placed]) -> None:
        for one in placed:
            refill(harness.submit(one_of(int(one.task.id.split("/")[1]))))

    def turn(sampled: bool) -> Sample | None:
        ended = harness.pop_running(chance.randrange(len(harness.running)))
        views, last_placed = (harness.views(ended), dict(harness.last_placed)) if sampled else ([], {})
        harness.finish(ended)
        sample = harness.sample(views, last_placed) if sampled else None
        refill(harness.accept_dispatches())
        harness.forget(ended)
        return sample

    _fill_the_fleet(harness, one_of)
    size = _fill_the_queue(harness, [one_of(number % SHAPES) for number in range(queued - harness.queued)])
    while harness.queued < queued:  # some of them were still placed
        harness.submit(one_of(harness.queued % SHAPES))
    figures = _figures(harness, turn, seconds, samples)
    if queued <= SHAPES and not pools:
        figures["wrong"] += _wrongly_waiting(harness)
    return {"clusters": clusters, "queued": harness.queued, "bytes_per_item": size, **figures}


def _figures(harness: PlacementHarness, turn: Turn, seconds: float, samples: int) -> dict[str, Any]:
    """Run the loop for these seconds, then until there are enough samples, and check those."""
    chance = random.Random(0)
    begin = time.perf_counter()
    warmed_up = _repeat(turn, seconds / 5, most=200)
    expected = warmed_up * seconds / (time.perf_counter() - begin)
    portion = min(0.5, samples / expected)
    kept: list[Sample | None] = []
    turns: list[int] = []
    placed_before, cpu, wall = harness.placements, time.process_time(), time.perf_counter()
    while time.perf_counter() - wall < seconds or len(turns) < _SLICES:
        if chance.random() < portion:
            kept.append(turn(True))
            continue
        before, harness.timed = harness.spent, True
        turn(False)
        harness.timed = False
        turns.append(harness.spent - before)
    share = (time.process_time() - cpu) / (time.perf_counter() - wall)
    dispatched = harness.placements - placed_before
    completed = len(turns) + len(kept)
    top_up = time.perf_counter()
    while sum(one is not None for one in kept) < samples and time.perf_counter() - top_up < seconds:
        kept.append(turn(True))
    checked = [one for one in kept if one is not None]
    return {
        "iterations": len(turns),
        "per_s": _rate(turns),
        "slices_per_s": [_rate(part) for part in _slices(turns)],
        "cpu_share": round(share, 2),
        "dispatched_per_iteration": round(dispatched / completed, 3),
        "handle": {name: _times(list(times)) for name, times in harness.times.items()},
        "handle_ms": _milliseconds([one for times in harness.times.values() for one in times]),
        "checked": len(checked),
        "wrong": harness.disagreements(checked),
    }


def _repeat(turn: Turn, seconds: float, most: int) -> int:
    begin, done = time.perf_counter(), 0
    while done < most and (done == 0 or time.perf_counter() - begin < seconds):
        turn(False)
        done += 1
    return done


def _fill_the_fleet(harness: PlacementHarness, one_of: Callable[[int], Any]) -> None:
    number = in_vain = 0
    while in_vain < _FULL_AFTER:
        in_vain = 0 if harness.submit(one_of(number % SHAPES)) else in_vain + 1
        number += 1


def _fill_the_queue(harness: PlacementHarness, items: list[Any]) -> float:
    """Returns the growth of the process in bytes per item, without the item itself (resident set, after gc)."""
    gc.collect()
    before = psutil.Process().memory_info().rss
    for one in items:
        harness.submit(one)
    gc.collect()
    return round((psutil.Process().memory_info().rss - before) / max(1, len(items)), 1)


def _change_other_usage(harness: PlacementHarness, chance: random.Random) -> None:
    """A snapshot shows that the use by other users changed."""
    one = chance.choice([one for one in harness.clusters if not one.silent])
    nodes = harness.machine.view(one.metadata.name, harness.now).nodes
    others = float(chance.randrange(3))
    free = [
        {
            name: max(0.0, amount - node.reserved.get(name, 0.0) - (others if name == "CPU" else 0.0))
            for name, amount in node.total.items()
        }
        for node in nodes
    ]
    harness.feed(events.SnapshotTaken(snapshot(one, harness.now, free)))
    harness.accept_dispatches()


def _wrongly_waiting(harness: PlacementHarness) -> list[str]:
    """Items that wait although the naive evaluator would place them."""
    views = harness.views()
    waiting = [record.task for record in harness.machine.records() if record.state is TaskState.QUEUED]
    answers = (evaluate(task, views, harness.settings, {}, local_python=PYTHON) for task in waiting)
    return [
        f"{task.id}: it waits, naively {answer.winner} takes it"
        for task, answer in zip(waiting, answers, strict=True)
        if answer.winner is not None
    ]


def _cpus(harness: PlacementHarness) -> int:
    return int(sum(node["CPU"] for one in harness.clusters if one.usable for node in one.nodes))


def _slices(turns: list[int]) -> list[list[int]]:
    size = max(1, -(-len(turns) // _SLICES))
    return [turns[begin : begin + size] for begin in range(0, len(turns), size)]


def _rate(turns: list[int]) -> float:
    """The median of the slices, so that one disturbance of the machine does not matter."""
    return round(statistics.median(len(part) / (sum(part) / 1e9) for part in _slices(turns)), 1)


def _times(nanoseconds: list[int]) -> dict[str, float]:
    mean = statistics.fmean(nanoseconds)
    return {"calls": len(nanoseconds), "mean_us": round(mean / 1000, 1), "per_s": round(1e9 / mean, 1)}


def _milliseconds(nanoseconds: list[int]) -> dict[str, float]:
    ordered = sorted(nanoseconds)
    at = {"p50": len(ordered) // 2, "p99": len(ordered) * 99 // 100, "max": len(ordered) - 1}
    return {name: round(ordered[min(index, len(ordered) - 1)] / 1e6, 4) for name, index in at.items()}
