"""Benchmark of scheduling decisions. Pure: one SchedulerMachine, a synthetic fleet, no Ray, no network, one thread.

python -m bench.placement [--json] [--clusters 2,20,200] [--seconds 5] [--queued 1000000] [--clock cpu] [--check]

cold    Every item is of a new shape and the queue is empty. Per iteration AttemptFinished of some item, in each fourth
        also SnapshotTaken of some cluster, then Submitted (the decision) and DispatchAccepted: decisions/s.
steady  1,000 shapes are queued and the fleet is full. Per iteration AttemptFinished with its start (which dispatches
        another item), DispatchAccepted of that one, and Submitted of one that takes its place in the queue:
        completions/s. Once more with a million queued, and once with 50 pools that share the fleet.

Rates count only the time inside these calls of handle(); each is the median of five slices. `cpu` is the share of CPU
time that this process got; on a shared machine, `--clock cpu` counts only that. Bytes per item: growth of the resident
set while the queue is filled with existing items. 1,000 random decisions and their tables are compared with a naive
evaluator (_naive.py). Exit code 1 if --check is given and a floor was missed.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import sys
import time
from collections.abc import Sequence
from typing import Any

from bench._placement_fleet import SHAPES
from bench._placement_harness import Clock
from bench._placement_loops import cold, steady
from bench._placement_report import AT, POOLS, report, table

_CLOCKS: dict[str, Clock] = {"wall": time.perf_counter_ns, "cpu": time.thread_time_ns}
_QUICK = {"seconds": 0.3, "queued": 20_000, "checks": 100}


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    clock = _CLOCKS[options.clock]
    figures = run(options.clusters, options.seconds, options.queued, options.checks, clock)
    document = {"bench": "placement", "clock": options.clock, **figures}
    print(json.dumps(document) if options.json else table(document))
    missed = options.check and not all(floor["passed"] for floor in document["floors"])
    return 1 if missed else 0


def run(clusters: Sequence[int], seconds: float, queued: int, checks: int, clock: Clock) -> dict[str, Any]:
    """Run all loops, one after another, with a garbage collection between them."""
    loops = 2 * len(clusters) + bool(queued)
    each = math.ceil(checks / loops)
    colds, steadies = [], []
    for count in clusters:
        _say(f"cold, {count} clusters")
        colds.append(_alone(cold(count, seconds, each, clock)))
        _say(f"steady, {count} clusters, {SHAPES:,} queued")
        steadies.append(_alone(steady(count, SHAPES, seconds, each, clock)))
    fleet = AT if AT in clusters else clusters[0]
    _say(f"steady, {fleet} clusters, {POOLS} pools")
    pooled = _alone(steady(fleet, SHAPES, seconds, 0, clock, POOLS))
    long_queue = None
    if queued:
        _say(f"steady, {fleet} clusters, {queued:,} queued")
        long_queue = _alone(steady(fleet, queued, seconds, each, clock))
    return report(colds, steadies, pooled, long_queue, checks)


def _alone(figures: dict[str, Any]) -> dict[str, Any]:
    gc.collect()
    return figures


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.placement", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    parser.add_argument("--clusters", type=_counts, default=[2, 20, 200], help="sizes of the fleet")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each timed loop")
    parser.add_argument("--queued", type=int, default=1_000_000, help="length of the long queue; 0 leaves it out")
    parser.add_argument("--checks", type=int, default=1000, help="decisions to compare with the naive evaluator")
    parser.add_argument("--clock", choices=sorted(_CLOCKS), default="wall", help="cpu: only while this thread ran")
    parser.add_argument("--quick", action="store_true", help="short loops, a queue of 20,000, 100 checks")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a floor is missed")
    options = parser.parse_args(arguments)
    if options.quick:
        for name, value in _QUICK.items():
            setattr(options, name, min(value, getattr(options, name)))
    return options


def _counts(text: str) -> list[int]:
    counts = [int(part) for part in text.split(",")]
    if min(counts) < 1:
        raise argparse.ArgumentTypeError(f"{text}: a fleet has at least one cluster")
    return counts


if __name__ == "__main__":
    sys.exit(main())
