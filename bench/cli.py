"""Benchmark of the command line: the duration of a command, from the start of its process to its end.

python -m bench.cli [--rounds 15] [--json]

The service is real, its clusters are simulated (bench/_simulated_service.py). `wall_ms` is the elapsed time, `cpu_ms`
the CPU time; on a busy machine only the latter is meaningful. `python` is an interpreter that runs `pass`. The aim is
300 ms for each.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.durable import Service

AIM_MS = 300.0
COMMANDS = ("--help", "version", "status", "task list", "task list -o json", "job list", "job --help", "queue")


def measure(command: Sequence[str], environ: Mapping[str, str], rounds: int) -> dict[str, float]:
    """Medians without the first run, which may have to compile."""
    walls, cpus = [], []
    for _ in range(rounds + 1):
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run(command, check=False, env=environ, capture_output=True, text=True)
        walls.append(1000 * (time.perf_counter() - began))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpus.append(1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr}")
    return {"wall_ms": round(statistics.median(walls[1:]), 1), "cpu_ms": round(statistics.median(cpus[1:]), 1)}


def run(rounds: int) -> dict[str, Any]:
    """All commands, one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        service = Service(Path(folder) / "state", run_ms=1.0)
        try:
            token = service.headers["Authorization"].removeprefix("Bearer ")
            environ = {**os.environ, "RMCS_ADDRESS": service.address, "RMCS_TOKEN": token}
            rmcs = [sys.executable, "-m", "ray_multicluster_scheduler"]
            figures = {f"rmcs {one}": measure([*rmcs, *one.split()], environ, rounds) for one in COMMANDS}
        finally:
            service.close()
    figures["python"] = measure([sys.executable, "-c", "pass"], os.environ, rounds)
    slow = [name for name, one in figures.items() if one["wall_ms"] > AIM_MS]
    return {"bench": "cli", "rounds": rounds, "commands": figures, "aim_ms": AIM_MS, "over_the_aim": slow}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    options = parser.parse_args(arguments)
    result = run(options.rounds)
    if options.json:
        print(json.dumps(result))
        return 0
    for name, one in result["commands"].items():
        print(f"{name:<24} {one['wall_ms']:>7.1f} ms  {one['cpu_ms']:>7.1f} ms of CPU")
    return 0


if __name__ == "__main__":
    sys.exit(main())
