"""Benchmark of serving: what the router costs, and what its choices gain, against other routers in the same run.

python -m bench.serving [--only v1,submit,mixed,equal,p90,idle] [--seconds 2] [--seeds 3] [--json]

Stub instances run in a process of their own, and each router in another. smg (policy least_load), Ray Serve's proxy and
litellm's proxy are installed by pip into venvs in a cache folder; one that cannot run here is listed with the reason.

v1      /v1 requests: time added to the stub's own at one connection, and requests per second over 16
submit  tasks acknowledged by POST /queue/submit per second over 16 connections
mixed   instances of 20, 20, 80 and 80 ms, sizes with a cv of 1.5, at 72 % load; 1,200 requests, of which the first 200
        do not count; the mean time against smg, and against ideals on the same requests
equal   four instances, 50 ms on average, the same load, true times given; and against join_shortest_queue
p90     the share of requests within the stated p90, in virtual time
idle    CPU of an idle router; its memory with 100,000 finished tasks
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from bench._serving_http import ask, closed_loop, open_loop
from bench._serving_processes import PATH, PeerUnavailable, Processes, Server, Stubs, chat
from bench._serving_stub import MODEL
from bench._serving_traces import IDEALS, GivenTimes, Request, ideal, mean_ms, play, trace

CONNECTIONS = 16
PEERS = ("smg", "ray_serve", "litellm")
MIXED, EQUAL = (20.0, 20.0, 80.0, 80.0), (50.0, 50.0, 50.0, 50.0)
COUNT, SKIP = 1200, 200
KEPT = 100_000
VIRTUAL_SEEDS = range(1, 21)


@dataclass
class Row:
    """A figure, and whether it keeps its floor and reaches its aim; both are bounds in the same direction."""

    part: str
    measure: str
    value: float | None
    relation: str = ""
    """"<=", ">=", or "within": a distance from 90 %."""
    floor: float | None = None
    aim: float | None = None
    note: str = ""

    def holds(self, bound: float | None) -> bool | None:
        if bound is None or self.value is None:
            return None
        match self.relation:
            case "<=":
                return self.value <= bound
            case ">=":
                return self.value >= bound
            case _:
                return abs(self.value - 90) <= bound


@dataclass
class Bench:
    processes: Processes
    seconds: float
    seeds: int
    worst_late_ms: float = 0.0

    def say(self, sentence: str) -> None:
        print(sentence, file=sys.stderr, flush=True)

    # ---- what it costs

    def v1(self) -> list[Row]:
        stubs = self.processes.stubs(0, 0, 0, 0)
        ours = self.processes.rmcs(stubs.ports)
        found: dict[str, list[dict[str, float]]] = {}
        problems: dict[str, str] = {}
        for peer in PEERS:
            targets: dict[str, Server | None] = {"direct": None, "rmcs": ours}
            try:
                server = self.processes.peer(peer, stubs.ports)
            except PeerUnavailable as error:
                problems[peer] = str(error)
                self.say(f"v1: {error}")
            else:
                targets[peer] = server
            for number in range(2):
                turns = list(targets.items())
                figures = {name: self._load(stubs, one) for name, one in (turns if number % 2 else reversed(turns))}
                for name, one in figures.items():
                    found.setdefault(name, []).append({**one, "added_ms": one["p50_ms"] - figures["direct"]["p50_ms"]})
                    found[name][-1]["rmcs_ratio"] = figures["rmcs"]["per_s"] / one["per_s"]
                self.say("v1: " + "; ".join(f"{name} {one['per_s']:,.0f} /s" for name, one in figures.items()))
            if peer in targets:
                server.stop()
        ours.stop()
        rows = [
            Row("v1", "added p50 at one connection, ms", _median(found["rmcs"], "added_ms"), "<=", 1.0, 0.4),
            Row("v1", "requests per second over 16 connections", _median(found["rmcs"], "per_s"), ">=", 2000, 5000),
            Row("v1", "CPU of the router for each request, µs", _median(found["rmcs"], "cpu_us")),
            Row("v1", "the stub alone: requests per second", _median(found["direct"], "per_s")),
        ]
        for peer in PEERS:
            if peer in problems:
                rows.append(Row("v1", peer, None, note=problems[peer]))
                continue
            some = found[peer]
            bounds = () if peer == "smg" else (">=", 3.0, 8.0)
            rows.append(Row("v1", f"{peer}: added p50, ms", _median(some, "added_ms")))
            rows.append(Row("v1", f"{peer}: requests per second", _median(some, "per_s")))
            rows.append(Row("v1", f"{peer}: CPU for each request, µs", _median(some, "cpu_us")))
            rows.append(Row("v1", f"requests per second / {peer}'s", _median(some, "rmcs_ratio"), *bounds))
        return rows

    def _load(self, stubs: Stubs, server: Server | None) -> dict[str, float]:
        """Of a router, or of the first stub itself."""
        port = stubs.ports[0] if server is None else server.port
        asyncio.run(closed_loop(port, PATH, chat(), CONNECTIONS, 0.5))  # warm-up
        one = asyncio.run(closed_loop(port, PATH, chat(), 1, self.seconds))
        stubs.answered()
        before = server.cpu_s() if server else 0.0
        many = asyncio.run(closed_loop(port, PATH, chat(), CONNECTIONS, self.seconds))
        answered = stubs.answered()
        if answered != many["requests"] and (server is None or server.name != "ray_serve"):
            raise RuntimeError(f"{many['requests']:g} requests were counted, and {answered} answered by the stubs")
        cpu = (server.cpu_s() - before) / many["requests"] if server else 0.0
        return {"p50_ms": one["p50_ms"], "per_s": many["per_s"], "cpu_us": 1e6 * cpu}

    def submit(self) -> list[Row]:
        stubs = self.processes.stubs(0, 0, 0, 0)
        server = self.processes.rmcs(stubs.ports, kind="queue", concurrency=16, strategy="shortest_queue")
        body = json.dumps({"model_name": MODEL, "task_input": {"page": 1}, "metadata": {"pixels": 900_000}}).encode()
        asyncio.run(closed_loop(server.port, "/queue/submit", body, CONNECTIONS, 1.0))
        began, before = time.monotonic(), server.cpu_s()
        acknowledged = [
            asyncio.run(closed_loop(server.port, "/queue/submit", body, CONNECTIONS, self.seconds)) for _ in range(3)
        ]
        _wait_idle(server)
        took, total = time.monotonic() - began, sum(one["requests"] for one in acknowledged)
        cpu = (server.cpu_s() - before) / total
        server.stop()
        rate = _median(acknowledged, "per_s")
        return [
            Row("submit", "acknowledged per second", rate, ">=", 1200, 3000),
            Row("submit", "completed per second, until all are", round(total / took, 1)),
            Row("submit", "CPU of the router for each task, µs", round(1e6 * cpu, 1)),
        ]

    # ---- what its choices gain

    def mixed(self) -> list[Row]:
        stubs = self.processes.stubs(*MIXED)
        means: dict[str, list[float]] = {}
        problem = ""
        for seed in range(1, self.seeds + 1):
            requests = trace(seed, COUNT, MIXED)
            visible = [chat(one.size, round(1000 * one.size)) for one in requests]
            hidden = [chat(one.size) for one in requests]
            figures = {name: statistics.mean(ideal(requests, MIXED, score)[SKIP:]) for name, score in IDEALS.items()}
            for name, bodies in (("visible", visible), ("hidden", hidden), ("smg", visible)):
                if name == "smg" and problem:
                    continue
                try:
                    server = (
                        self.processes.peer("smg", stubs.ports)
                        if name == "smg"
                        else self.processes.rmcs(stubs.ports, concurrency=1)
                    )
                except PeerUnavailable as error:
                    problem = str(error)
                    continue
                figures[name] = self._mean_v1(server, requests, bodies)
                server.stop()
            self.say(f"mixed, seed {seed}: " + ", ".join(f"{name} {one:.1f} ms" for name, one in figures.items()))
            for name, one in figures.items():
                means.setdefault(name, []).append(one)
        note = "; ".join(f"{name} {statistics.mean(some):.1f} ms" for name, some in means.items())
        return [
            Row("mixed", "largest delay of the load generator itself, ms", round(self.worst_late_ms, 1)),
            Row("mixed", "size visible: mean / smg's", _ratio(means, "visible", "smg"), "<=", 0.8, 0.65, problem),
            Row("mixed", "size visible: mean / the oracle's", _ratio(means, "visible", "oracle"), "<=", 1.35, 1.15),
            Row("mixed", "size hidden: mean / smg's", _ratio(means, "hidden", "smg"), "<=", 1.0, None, problem),
            Row("mixed", "size hidden: mean / speed-aware", _ratio(means, "hidden", "speed_aware"), "<=", None, 1.05),
            Row(
                "mixed",
                "smg's mean, ms",
                round(statistics.mean(means["smg"]), 1) if "smg" in means else None,
                note=note,
            ),
        ]

    def _mean_v1(self, server: Server, requests: Sequence[Request], bodies: Sequence[bytes]) -> float:
        sent, answered = asyncio.run(open_loop(server.port, PATH, [one.at for one in requests], bodies))
        self._check_quiet(requests, sent)
        times = [1000 * (end - begin) for begin, end in zip(sent, answered, strict=True)]
        return statistics.mean(times[SKIP:])

    def _check_quiet(self, requests: Sequence[Request], sent: Sequence[float]) -> None:
        """Remember how late the generator itself was: on a busy machine these times say little about a router."""
        late = [at - one.at for at, one in zip(sent, requests, strict=True)]
        self.worst_late_ms = max(self.worst_late_ms, 1000 * (max(late) - min(late)))

    def equal(self) -> list[Row]:
        stubs = self.processes.stubs(*EQUAL)
        means: dict[str, list[float]] = {}
        for seed in range(1, self.seeds + 1):
            requests = trace(seed, COUNT, EQUAL)
            figures = {name: statistics.mean(ideal(requests, EQUAL, IDEALS[name])[SKIP:]) for name in ("oracle",)}
            for name, strategy, table in (
                (
                    "true_times",
                    "shortest_queue",
                    [_record(one.size * 50, 0.0, f"r{n}") for n, one in enumerate(requests)],
                ),
                ("mean_only", "shortest_queue", [_record(50.0, 75.0)]),
                ("join_shortest_queue", "join_shortest_queue", [_record(50.0, 75.0)]),
            ):
                path = self.processes.folder / f"{name}.json"
                path.write_text(json.dumps(table))
                server = self.processes.rmcs(
                    stubs.ports, kind="queue", concurrency=1, strategy=strategy, predictions=str(path)
                )
                bodies = [_task(number, one.size) for number, one in enumerate(requests)]
                sent, _ = asyncio.run(open_loop(server.port, "/queue/submit", [one.at for one in requests], bodies))
                self._check_quiet(requests, sent)
                _wait_idle(server)
                ends = stubs.ends()
                figures[name] = statistics.mean(1000 * (ends[n] - sent[n]) for n in range(SKIP, COUNT))
                server.stop()
            self.say(f"equal, seed {seed}: " + ", ".join(f"{name} {one:.1f} ms" for name, one in figures.items()))
            for name, one in figures.items():
                means.setdefault(name, []).append(one)
        worst = max(_mean_only_ratio(seed) for seed in VIRTUAL_SEEDS)
        note = "; ".join(f"{name} {statistics.mean(some):.1f} ms" for name, some in means.items())
        against_jsq = _ratio(means, "mean_only", "join_shortest_queue")
        return [
            Row(
                "equal",
                "true times given: mean / least work left",
                _ratio(means, "true_times", "oracle"),
                "<=",
                1.15,
                1.05,
            ),
            Row("equal", "largest delay of the load generator itself, ms", round(self.worst_late_ms, 1)),
            Row("equal", "mean only / join_shortest_queue", against_jsq, "<=", 1.05, None, note),
            Row("equal", "the same in virtual time, worst of 20 traces", round(worst, 3), "<=", 1.05),
        ]

    # ---- whether its statements hold

    def p90(self) -> list[Row]:
        steady, slowed, slow = [], [], []
        for seed in VIRTUAL_SEEDS:
            requests = trace(seed, 3000, EQUAL)
            steady.append([one.covered for one in play(requests[:1200], EQUAL, "shortest_queue")])
            change = requests[600].at
            after = [one for one in play(requests, EQUAL, "shortest_queue", slow_from=change) if one.request >= 600]
            slowed.append([one.covered for one in after])
            slow.append([one.covered for one in after if one.instance == "0"])
        bounds = ("within", 5.0, 2.0)
        return [
            Row("p90", "% within p90, completions 301 to 600", _percent(steady, 300, 600), *bounds),
            Row("p90", "% after one is 3 × slower, 201 to 400", _percent(slowed, 200, 400), *bounds),
            Row("p90", "% of the slow one's own, 201 to 400", _percent(slow, 200, 400), *bounds),
            Row("p90", "% before it holds: completions 1 to 300", _percent(steady, 0, 300)),
            Row("p90", "% of the slow one's own, 1 to 200", _percent(slow, 0, 200)),
        ]

    # ---- what it holds

    def idle(self) -> list[Row]:
        stubs = self.processes.stubs(0, 0, 0, 0)
        server = self.processes.rmcs(stubs.ports, kind="queue", concurrency=16)
        process = psutil.Process(server.pid)
        empty = process.memory_info().rss
        tasks = [{"task_input": {"page": number}, "metadata": {"pixels": 900_000}} for number in range(1000)]
        body = json.dumps({"model_name": MODEL, "tasks": tasks}).encode()
        for _ in range(KEPT // len(tasks)):
            asyncio.run(ask(server.port, "/queue/submit_batch", body))
            _wait_idle(server)  # a backlog would leave its own memory behind
        total = server.get("/task/all_tasks?limit=1")["total_tasks"]
        assert total == KEPT, f"{total:,} tasks are kept"
        rss = process.memory_info().rss
        before, seconds = sum(process.cpu_times()[:2]), max(10.0, self.seconds)
        time.sleep(seconds)
        used = 100 * (sum(process.cpu_times()[:2]) - before) / seconds
        server.stop()
        return [
            Row("idle", "CPU of an idle router with 4 instances, %", round(used, 2), "<=", 1.0),
            Row("idle", "memory with 100,000 finished tasks, MB", round(rss / 1e6, 1), "<=", 200),
            Row("idle", "memory at the start, MB", round(empty / 1e6, 1)),
        ]


PARTS: dict[str, Callable[[Bench], list[Row]]] = {
    "v1": Bench.v1,
    "submit": Bench.submit,
    "mixed": Bench.mixed,
    "equal": Bench.equal,
    "p90": Bench.p90,
    "idle": Bench.idle,
}


def _median(figures: Sequence[dict[str, Any]], name: str) -> float:
    return round(float(statistics.median(one[name] for one in figures)), 3)


def _ratio(means: dict[str, list[float]], name: str, against: str) -> float | None:
    if against not in means:
        return None
    return round(sum(means[name]) / sum(means[against]), 3)


def _percent(runs: Sequence[Sequence[bool | None]], begin: int, end: int) -> float:
    """Of all runs together, the first request of which has no stated p90."""
    return round(100 * statistics.mean(bool(one) for run in runs for one in run[begin:end]), 1)


def _record(mean: float, std: float, name: str | None = None) -> dict[str, Any]:
    """A record of a table for LookupPredictor: a lognormal time."""
    sigma = math.sqrt(math.log(1 + (std / mean) ** 2))
    levels = {0.1: -1.2816, 0.25: -0.6745, 0.5: 0.0, 0.75: 0.6745, 0.9: 1.2816, 0.99: 2.3263}
    times = [mean * math.exp(sigma * z - sigma * sigma / 2) for z in levels.values()]
    row = {"quantiles": list(levels), "quantile_predictions": times, "expect": mean, "error": std}
    return {"model_type": MODEL, "model_info": {"name": name} if name else {}, **row}


def _task(number: int, size: float) -> bytes:
    data = {"number": number, "seed": round(size * 1e6)}
    return json.dumps({"model_name": MODEL, "task_input": data, "metadata": {"name": f"r{number}"}}).encode()


def _mean_only_ratio(seed: int) -> float:
    """In virtual time: mean-only predictions against join_shortest_queue. Each is played three times, since ties are
    broken at random: played once, join_shortest_queue differs from itself by up to 5 % on such a trace."""
    random.seed(seed)
    requests = trace(seed, COUNT, EQUAL)
    given: dict[str, Any] = {"predictor": GivenTimes(), "metadata": lambda _: {"mean": 50.0, "std": 75.0}}
    sums = {"shortest_queue": 0.0, "join_shortest_queue": 0.0}
    for name in (*sums, *sums, *sums):
        sums[name] += mean_ms(play(requests, EQUAL, name, **given), SKIP)
    return sums["shortest_queue"] / sums["join_shortest_queue"]


def _wait_idle(server: Server) -> None:
    """Until all tasks have ended."""
    while any(row["length"] for row in server.get("/queue/info")["queues"]):
        time.sleep(0.02)


def run(parts: Sequence[str], seconds: float, seeds: int) -> list[Row]:
    rows: list[Row] = []
    for part in parts:
        with tempfile.TemporaryDirectory(prefix="rmcs-serving-") as folder, Processes(Path(folder)) as processes:
            rows += PARTS[part](Bench(processes, seconds, seeds))
    return rows


def document(rows: Sequence[Row]) -> dict[str, Any]:
    found = [{**asdict(one), "floor_holds": one.holds(one.floor), "aim_holds": one.holds(one.aim)} for one in rows]
    missed = [f"{one['part']}: {one['measure']}" for one in found if one["floor_holds"] is False]
    return {"bench": "serving", "rows": found, "floors_missed": missed}


def table(rows: Sequence[Row]) -> str:
    lines = [f"{'':58}{'measured':>10}  {'floor':<16}{'aim':<16}"]
    for one in rows:
        bounds = ""
        for bound in (one.floor, one.aim):
            text = "" if bound is None else f"{one.relation} {bound:,g} {'holds' if one.holds(bound) else 'missed'}"
            bounds += f"{text:<18}"
        value = "–" if one.value is None else f"{one.value:,g}"
        lines.append(f"{one.part:7} {one.measure:50}{value:>10}  {bounds}{one.note}".rstrip())
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help="parts to run (default: all)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each load (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="traces of `mixed` and `equal` (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    options = parser.parse_args(arguments)
    parts = options.only.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"no part is called {', '.join(sorted(unknown))}: choose from {', '.join(PARTS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        rows = run(parts, options.seconds, options.seeds)
    except KeyboardInterrupt:
        print("interrupted; all processes are stopped", file=sys.stderr)
        return 130
    print(json.dumps(document(rows)) if options.json else table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
