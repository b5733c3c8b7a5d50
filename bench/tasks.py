"""Benchmark of tasks, actor calls, maps and large values: our package, Ray Client, and a driver inside the cluster.

python -m bench.tasks [--json] [--only throughput,round_trip] [--rounds 5] [--tasks 1000] [--profile] [--check]

One local cluster of 2 CPUs, one run, contenders in turns, each warmed up before each turn. The machine may be noisy, so
only ratios inside one run count. Exit code 1 if a contender failed or, with --check, a floor was missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench._contenders import Contender, ContenderFailed, contenders
from bench._measure import measure
from bench._parts import CPUS, Part, all_parts
from bench._profile import CannotProfile, profile, profile_text
from bench._report import report, table
from ray_multicluster_scheduler.local_fleet import LocalCluster, LocalFleet

_CLUSTER = "local"
_OBJECT_STORE_BYTES = 2_000_000_000
"""Room for large values whose references Ray has not released yet."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    parts = chosen(options.only, all_parts(options.tasks, options.singles))
    try:
        document = run(parts, options.rounds, options.profile)
    except KeyboardInterrupt:
        _say("interrupted; the cluster and every contender were stopped")
        return 130
    document = {"bench": "tasks", "rounds": options.rounds, "machine": _machine(), **document}
    print(json.dumps(document) if options.json else _text(document))
    return exit_code(document, options.check)


def run(parts: Sequence[Part], rounds: int, profile_s: int) -> dict[str, Any]:
    """Start a cluster, measure, and stop it."""
    with ExitStack() as running:
        _say("starting a local cluster")
        fleet = running.enter_context(
            LocalFleet(LocalCluster(_CLUSTER, num_cpus=CPUS, object_store_memory=_OBJECT_STORE_BYTES))
        )
        folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="rmcs-bench-")))
        everyone = contenders(fleet, _CLUSTER, folder)
        for contender in everyone.values():
            running.callback(contender.end)
        document = report([measure(part, everyone, rounds, _say) for part in parts])
        document["versions"] = {name: contender.version for name, contender in everyone.items() if contender.version}
        if profile_s:
            document["profile"] = _profiled(fleet, everyone["rmcs"], profile_s)
    return document


def exit_code(document: dict[str, Any], check: bool) -> int:
    """A missed floor counts only with ``check``; a contender that could not be measured always does."""
    missed = check and not all(floor["passed"] for floor in document["floors"])
    return 1 if document["errors"] or missed else 0


def chosen(only: str | None, parts: Sequence[Part]) -> list[Part]:
    """The parts of a comma-separated list of names or their first words; all parts without one. Exits for an unknown
    name."""
    if only is None:
        return list(parts)
    wanted = [name.strip() for name in only.split(",") if name.strip()]
    names = [part.name for part in parts]
    if unknown := [name for name in wanted if not any(_is_called(part, name) for part in names)]:
        raise SystemExit(f"there is no part {', '.join(unknown)}; choose from {', '.join(names)}")
    return [part for part in parts if any(_is_called(part.name, name) for name in wanted)]


def _is_called(part: str, name: str) -> bool:
    return part == name or part.startswith(f"{name}_")


def _profiled(fleet: LocalFleet, contender: Contender, seconds: int) -> dict[str, Any]:
    """Profiles, made after all figures were measured, because profiling costs time."""
    part = next(part for part in all_parts(tasks=1000, singles=1) if part.name == "throughput")
    _say(f"profiling {contender.name} for {seconds} s")
    try:
        contender.start()
        return profile(fleet, _CLUSTER, contender, part, seconds)
    except (CannotProfile, ContenderFailed) as error:
        return {"problem": str(error)}


def _text(document: dict[str, Any]) -> str:
    machine = document["machine"]
    loads = ", ".join(f"{load:g}" for load in machine["load_average"])
    text = f"{machine['cpus']} CPUs, load average {loads}\n\n{table(document)}"
    profiled = document.get("profile")
    if profiled is None:
        return text
    problem = profiled.get("problem")
    return f"{text}\n\nwhere the time goes, 1,000 no-op tasks over and over:\n" + (
        f"  no profile: {problem}" if problem else profile_text(profiled)
    )


def _machine() -> dict[str, Any]:
    return {
        "cpus": os.cpu_count(),
        "load_average": [round(load, 1) for load in os.getloadavg()],
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.tasks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    parser.add_argument("--only", help="comma-separated parts, or their first words: throughput, round_trip, large, …")
    parser.add_argument("--rounds", type=_at_least_one, default=5)
    parser.add_argument("--tasks", type=_at_least_one, default=1000, help="tasks, and pipelined actor calls, per round")
    parser.add_argument("--singles", type=_at_least_one, default=100, help="single calls per round")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a floor is missed")
    parser.add_argument(
        "--profile", type=_at_least_one, nargs="?", const=15, default=0, metavar="SECONDS", help="also run py-spy"
    )
    return parser


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number


if __name__ == "__main__":
    sys.exit(main())
