"""The loops that are timed, and what comes out of them.

Only calls of ``SchedulerMachine.handle`` are timed, one by one; what is around them (inventing items, looking at
views) is not. Iterations whose decision is re-checked are not timed at all: looking may warm what a decision needs.
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
from bench._placement_world import Clock, Placed, Sample, World
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.control_plane.config.settings import Settings
from ray_multicluster_scheduler.scheduler.lifecycle import events

_SLICES = 5
_FULL_AFTER = 100  # so many in a row found no place

Turn = Callable[[bool], Sample | None]
"""One iteration; when told so, it also keeps its decision and what that was made from."""


def cold(clusters: int, seconds: float, samples: int, clock: Clock = time.perf_counter_ns) -> dict[str, Any]:
    """Every item is of a new shape, the queue is empty, and the ledger changes before each decision.

    In each iteration: AttemptFinished of some item; in each fourth also SnapshotTaken of some cluster; then Submitted,
    which places the item, and its DispatchAccepted. All of them count.
    """
    world = World(clusters, Settings(submission_interval_s=0), clock)
    chance = random.Random(clusters)
    numbers = iter(range(10**9))

    def submit() -> None:
        number = next(numbers)
        world.submit(new_shape(f"t{number}", number, world.now))

    def turn(sampled: bool) -> Sample | None:
        ended = world.take_out(chance.randrange(len(world.running)))
        world.finish(ended)
        world.take_in()
        if world.placements % 4 == 0:
            _others_change(world, chance)
        views, last_placed = (world.views(), dict(world.last_placed)) if sampled else ([], {})
        number = next(numbers)
        world.submitted += 1
        world.feed(events.Submitted(new_shape(f"t{number}", number, world.now)))
        sample = world.sample(views, last_placed) if sampled else None
        world.take_in()
        world.forget(ended)
        return sample

    for _ in range(_cpus(world) // 4):
        submit()
    return {"clusters": clusters, **_figures(world, turn, seconds, samples)}


def steady(
    clusters: int, queued: int, seconds: float, samples: int, clock: Clock = time.perf_counter_ns
) -> dict[str, Any]:
    """A full fleet and a full queue of :data:`SHAPES` shapes; one completion, one pass, one dispatch.

    In each iteration: AttemptFinished (with its start, so no Started), which dispatches another item; that one's
    DispatchAccepted; and Submitted of a new one of the same shape. All of them count.
    """
    world = World(clusters, Settings(max_queue=10 * queued), clock)
    chance = random.Random(clusters)
    numbers = iter(range(10**9))

    def one_of(shape: int) -> Any:
        return item(f"t{next(numbers)}/{shape}", shape, world.clusters, world.now)

    def refill(placed: Iterable[Placed]) -> None:
        for one in placed:
            refill(world.submit(one_of(int(one.task.id.split("/")[1]))))

    def turn(sampled: bool) -> Sample | None:
        ended = world.take_out(chance.randrange(len(world.running)))
        views, last_placed = (world.views(ended), dict(world.last_placed)) if sampled else ([], {})
        world.finish(ended)
        sample = world.sample(views, last_placed) if sampled else None
        refill(world.take_in())
        world.forget(ended)
        return sample

    _fill_the_fleet(world, one_of)
    size = _fill_the_queue(world, [one_of(number % SHAPES) for number in range(queued - world.queued)])
    while world.queued < queued:  # some of them still found a place
        world.submit(one_of(world.queued % SHAPES))
    figures = _figures(world, turn, seconds, samples)
    if queued <= SHAPES:
        figures["wrong"] += _held_back(world)
    return {"clusters": clusters, "queued": world.queued, "bytes_per_item": size, **figures}


def _figures(world: World, turn: Turn, seconds: float, samples: int) -> dict[str, Any]:
    """Run it for so long, then until enough decisions were kept, and check those."""
    chance = random.Random(0)
    begin = time.perf_counter()
    warmed_up = _repeat(turn, seconds / 5, most=200)
    expected = warmed_up * seconds / (time.perf_counter() - begin)
    portion = min(0.5, samples / expected)
    kept: list[Sample | None] = []
    turns: list[int] = []
    placed_before, cpu, wall = world.placements, time.process_time(), time.perf_counter()
    while time.perf_counter() - wall < seconds or len(turns) < _SLICES:
        if chance.random() < portion:
            kept.append(turn(True))
            continue
        before, world.timed = world.spent, True
        turn(False)
        world.timed = False
        turns.append(world.spent - before)
    share = (time.process_time() - cpu) / (time.perf_counter() - wall)
    dispatched = world.placements - placed_before
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
        "handle": {name: _times(list(times)) for name, times in world.times.items()},
        "handle_ms": _milliseconds([one for times in world.times.values() for one in times]),
        "checked": len(checked),
        "wrong": world.wrongs(checked),
    }


def _repeat(turn: Turn, seconds: float, most: int) -> int:
    begin, done = time.perf_counter(), 0
    while done < most and (done == 0 or time.perf_counter() - begin < seconds):
        turn(False)
        done += 1
    return done


def _fill_the_fleet(world: World, one_of: Callable[[int], Any]) -> None:
    number = in_vain = 0
    while in_vain < _FULL_AFTER:
        in_vain = 0 if world.submit(one_of(number % SHAPES)) else in_vain + 1
        number += 1


def _fill_the_queue(world: World, items: list[Any]) -> float:
    """Returns by how many bytes the process grew for each item, beyond the item itself (resident set, after gc)."""
    gc.collect()
    before = psutil.Process().memory_info().rss
    for one in items:
        world.submit(one)
    gc.collect()
    return round((psutil.Process().memory_info().rss - before) / max(1, len(items)), 1)


def _others_change(world: World, chance: random.Random) -> None:
    """Some cluster tells that somebody else uses another amount of it."""
    one = chance.choice([one for one in world.clusters if not one.silent])
    nodes = world.machine.view(one.metadata.name, world.now).nodes
    others = float(chance.randrange(3))
    free = [
        {
            name: max(0.0, amount - node.reserved.get(name, 0.0) - (others if name == "CPU" else 0.0))
            for name, amount in node.total.items()
        }
        for node in nodes
    ]
    world.feed(events.SnapshotTaken(snapshot(one, world.now, free)))
    world.take_in()


def _held_back(world: World) -> list[str]:
    """Items that wait although some cluster would take them, by the naive evaluator."""
    views = world.views()
    waiting = [record.task for record in world.machine.records() if record.state is TaskState.QUEUED]
    answers = (evaluate(task, views, world.settings, {}, local_python=PYTHON) for task in waiting)
    return [
        f"{task.id}: it waits, naively {answer.winner} takes it"
        for task, answer in zip(waiting, answers, strict=True)
        if answer.winner is not None
    ]


def _cpus(world: World) -> int:
    return int(sum(node["CPU"] for one in world.clusters if one.usable for node in one.nodes))


def _slices(turns: list[int]) -> list[list[int]]:
    size = max(1, -(-len(turns) // _SLICES))
    return [turns[begin : begin + size] for begin in range(0, len(turns), size)]


def _rate(turns: list[int]) -> float:
    """The median of the slices, so that one disturbance of the machine does not decide."""
    return round(statistics.median(len(part) / (sum(part) / 1e9) for part in _slices(turns)), 1)


def _times(nanoseconds: list[int]) -> dict[str, float]:
    mean = statistics.fmean(nanoseconds)
    return {"calls": len(nanoseconds), "mean_us": round(mean / 1000, 1), "per_s": round(1e9 / mean, 1)}


def _milliseconds(nanoseconds: list[int]) -> dict[str, float]:
    ordered = sorted(nanoseconds)
    at = {"p50": len(ordered) // 2, "p99": len(ordered) * 99 // 100, "max": len(ordered) - 1}
    return {name: round(ordered[min(index, len(ordered) - 1)] / 1e6, 4) for name, index in at.items()}
