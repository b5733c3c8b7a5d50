"""Benchmark of a program's start: the time from the start of its process to the result of its first task, step by step.

python -m bench.cold_start [--rounds 5] [--json] [--against FOLDER]

One local cluster of 2 CPUs. In each round a bare Ray job with one task runs as the yardstick (``ray job``), then a
program that finds no agent (``first``), then one that starts when that has ended (``next``). ``--against`` measures the
version in another folder, such as a git worktree, in the same rounds. Medians; only ratios inside one run count.

Steps: ``program``: start of Python, imports and configuration; ``placed``: until the agent's job is submitted; ``ray``:
until Ray has started the agent's process; ``agent``: until Ray is asked for a worker; ``worker``: until the task
runs; ``result``: until the program has the value.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ray_multicluster_scheduler.local_fleet import LocalCluster, LocalFleet
from ray_multicluster_scheduler.local_fleet.ports import LOOPBACK

PROGRAM = Path(__file__).with_name("_cold_program.py")
OURS = Path(__file__).resolve().parents[1]
_CLUSTER = "local"
_TIMEOUT_S = 300.0
_BARE = (
    "import ray; ray.init(logging_level='ERROR', log_to_driver=False); "
    "print(ray.get(ray.remote(lambda: 'ran').remote()))"
)


class Cluster:
    """The cluster under test, and what the benchmark asks of its dashboard."""

    def __init__(self, fleet: LocalFleet) -> None:
        self._address = f"http://{LOOPBACK}:{fleet.direct_ports(_CLUSTER).dashboard}"
        self._token = fleet.folder(_CLUSTER).token.read_text(encoding="utf-8").strip()
        self._jobs = 0

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        request = urllib.request.Request(self._address + path, data, headers)  # nosec B310 # our own address
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # nosec B310 # see above
            return json.loads(answer.read())

    def bare_job(self) -> float:
        """Seconds from the submission of a job with one task until its status is known to be SUCCEEDED."""
        began, name = time.time(), f"bare-{time.time_ns()}"
        self.ask("/api/jobs/", {"submission_id": name, "entrypoint": f'python -c "{_BARE}"', "entrypoint_num_cpus": 0})
        while (status := self.ask(f"/api/jobs/{name}")["status"]) != "SUCCEEDED":
            if status in ("FAILED", "STOPPED") or time.time() > began + _TIMEOUT_S:
                raise RuntimeError(f"the bare job is {status}")
            time.sleep(0.02)
        return time.time() - began

    def agents(self) -> list[dict[str, Any]]:
        """The jobs of agents, the newest last."""
        found = [one for one in self.ask("/api/jobs/") if str(one["submission_id"]).startswith("rmcs-agent-")]
        return sorted(found, key=lambda one: float(one["start_time"]))

    def end_agents(self) -> None:
        """Also those that wait for the next program."""
        while running := [one for one in self.agents() if one["status"] in ("PENDING", "RUNNING")]:
            for one in running:
                self.ask(f"/api/jobs/{one['submission_id']}/stop", {})
            time.sleep(0.1)


def steps(times: dict[str, float], began: float, posted: float | None) -> dict[str, float]:
    """The durations between the observed times, in their order; a step that did not take place is left out."""
    order = [
        ("program", times["submitted"]),
        ("placed", posted),
        ("ray", times.get("agent") if posted is not None else None),
        ("agent", times["worker"] if posted is not None else None),
        ("worker", times["ran"]),
        ("result", times["first_result"]),
    ]
    found, last = {"total": times["first_result"] - began}, began
    for name, at in order:
        if at is not None:
            found[name], last = max(0.0, at - last), max(at, last)
    return found


def program(config: Path, folder: Path, home: Path, cluster: Cluster) -> dict[str, float]:
    """Run the program with the version of our package in ``folder``; returns the seconds of each step."""
    known = {one["submission_id"] for one in cluster.agents()}
    left_out = ("RMCS_", "PYTHONDONTWRITEBYTECODE")  # users have compiled modules
    environment = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    environment |= {"PYTHONPATH": str(folder), "RMCS_HOME": str(home)}
    began = time.time()
    done = subprocess.run(
        [sys.executable, "-P", str(PROGRAM), str(config)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the program ended with {done.returncode}: {done.stderr}")
    times = json.loads(done.stdout.splitlines()[-1])
    new = [one for one in cluster.agents() if one["submission_id"] not in known]
    return steps(times, began, float(new[-1]["start_time"]) / 1000 if new else None)


def run(rounds: int, against: Path | None) -> dict[str, Any]:
    """All contenders in turns, after one round that warms the cluster up and is not counted."""
    folders = {"": OURS} if against is None else {"": OURS, " (other)": against}
    figures: dict[str, list[dict[str, float]]] = {}
    with (
        LocalFleet(LocalCluster(_CLUSTER, num_cpus=2)) as fleet,
        tempfile.TemporaryDirectory(prefix="rmcs-bench-") as homes,
    ):
        cluster = Cluster(fleet)
        for number in range(rounds + 1):
            found = {"ray job": {"total": cluster.bare_job()}}
            for label, folder in folders.items():
                home = Path(homes) / f"{number}{label.strip(' ()')}"
                for name in ("first", "next"):
                    found[name + label] = program(fleet.config_path, folder, home, cluster)
                    print(number, name + label, found[name + label], file=sys.stderr, flush=True)
                cluster.end_agents()
            for name, one in found.items():
                if number:
                    figures.setdefault(name, []).append(one)
    return {"bench": "cold_start", "rounds": rounds, "seconds": {name: medians(some) for name, some in figures.items()}}


def medians(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    names = list(dict.fromkeys(name for one in rounds for name in one))
    return {name: round(statistics.median(one[name] for one in rounds if name in one), 3) for name in names}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--against", type=Path, help="a folder with another version of this package")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    options = parser.parse_args(arguments)
    result = run(options.rounds, options.against and options.against.resolve())
    if options.json:
        print(json.dumps(result))
        return 0
    for name, one in result["seconds"].items():
        print(f"{name:<16}", *(f"{step} {seconds:.2f}" for step, seconds in one.items()), sep="  ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
