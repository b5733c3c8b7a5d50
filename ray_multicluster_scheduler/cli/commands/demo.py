"""`rmcs demo`: a tour on two real local Ray clusters that uses only the public API and checks each step.

The functions that are submitted are nested: they are pickled by value, since the clusters do not have this module.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

import ray_multicluster_scheduler as rmcs
from ray_multicluster_scheduler.cli import exit_codes

if TYPE_CHECKING:
    from rich.console import Console

TAGS = {"x86_64": "linux", "arm64": "mac"}
"""A tag of each cluster of the demo."""
SMALL_TASKS = 20
CALLS = 100
FAST_MS, SLOW_MS = 10, 100
REQUESTS = 200
STEP_TIMEOUT_S = 120.0
END_TIMEOUT_S = 10.0
JOB_GREETING = "hello from a Ray job on"
JOB_ENTRYPOINT = f"""python -c 'import os; print("{JOB_GREETING}", os.environ["RMCS_CLUSTER"])'"""


def demo() -> None:
    """Run a tour on two real Ray clusters on this machine.

    Starts them, runs tasks, an actor and a job on them, and shows why each ran where it did. Exit code 100 if a step
    has another result than expected.
    """
    from ray_multicluster_scheduler.cli.commands.fleet import describe
    from ray_multicluster_scheduler.cli.layout.output import console

    screen = console()
    screen.print("Starting two local Ray clusters (about 10 seconds; the first time longer) …")
    settings = {"submission_interval_s": 0, "resource_threshold": 1}

    def progress(cluster: str, text: str) -> None:
        screen.print(f"   {cluster}: {text}", markup=False)

    try:
        with rmcs.LocalFleet(*describe(2, 2), settings=settings, progress=progress) as fleet:
            tour = Tour(screen, fleet.config_path)
            problems = tour.run()
            screen.print("\nStopping the clusters …")
    except KeyboardInterrupt:
        screen.print("All that the demo started is stopped.")
        raise
    tour.print_table()
    if problems:
        for problem in problems:
            typer.echo(f"rmcs demo: {problem}", err=True)
        raise typer.Exit(exit_codes.FAILED)
    typer.echo(
        f"All steps had the expected results. Next: README.md, or `{_rmcs()} fleet up` for a fleet that stays up."
    )


def _rmcs() -> str:
    """The command to type in this shell: `make demo` runs an `rmcs` that is not on the PATH."""
    installed = Path(sys.executable).with_name("rmcs")
    if shutil.which("rmcs") or not installed.exists():
        return "rmcs"
    here = Path.cwd()
    return str(installed.relative_to(here) if installed.is_relative_to(here) else installed)


class Mismatch(Exception):
    """A step had another result than expected."""


class Tour:
    """Runs the steps on the fleet of ``config_path`` and records what ran where and why."""

    def __init__(self, screen: Console, config_path: Path) -> None:
        self._screen = screen
        self._config_path = config_path
        self._rows: list[tuple[str, Mapping[str, Any]]] = []

    def run(self) -> list[str]:
        """Run all steps and shut down; returns the problems."""
        steps: tuple[Callable[[], None], ...] = (
            self.a_task_for_each_kind_of_machine_says_where_it_ran,
            self.many_small_tasks_spread,
            self.an_actor_that_counts,
            self.a_job_with_its_log,
            self.a_failure_as_the_caller_sees_it,
            self.requests_to_two_fast_instances_and_a_slow_one,
        )
        problems = []
        rmcs.initialize_scheduler_environment(self._config_path)
        try:
            for number, step in enumerate(steps, 1):
                self._screen.print(f"\n{number}. {step.__name__.replace('_', ' ').capitalize()}", style="bold")
                try:
                    step()
                except Exception as error:  # noqa: BLE001 - any error of a step is reported
                    problems.append(f"step {number}: {type(error).__name__}: {error}")
                    self._print(f"   did not work: {error}")
        finally:
            rmcs.shutdown()
        return problems

    def a_task_for_each_kind_of_machine_says_where_it_ran(self) -> None:
        def where() -> dict[str, object]:
            import os
            import platform

            from ray_multicluster_scheduler import current

            item = current()
            return {"cluster": item and item.cluster, "host": platform.node(), "pid": os.getpid()}

        handles = [rmcs.submit_task_async(where, name=f"where ({tag})", require_tags=[tag]) for tag in TAGS]
        for tag, handle in zip(TAGS, handles, strict=True):
            report = handle.result(timeout=STEP_TIMEOUT_S)
            self._print(f"   {tag}: cluster {report['cluster']}, host {report['host']}, process {report['pid']}")
            self._record(f"where ({tag})", handle.explain())
            if not report["cluster"] == handle.cluster == TAGS[tag]:
                raise Mismatch(
                    f"a task for {tag} reports {report['cluster']!r}, the scheduler reports {handle.cluster!r}"
                )

    def many_small_tasks_spread(self) -> None:
        def square(number: int) -> int:
            import time

            time.sleep(0.2)
            return number * number

        handles = [rmcs.submit_task_async(square, args=(n,), name=f"square {n}") for n in range(SMALL_TASKS)]
        results = rmcs.get(handles, timeout=STEP_TIMEOUT_S)
        for number, handle in enumerate(handles):
            self._record(f"square {number}", handle.explain())
        counts = Counter(handle.cluster for handle in handles)
        self._print("   " + ", ".join(f"{count} on {cluster}" for cluster, count in sorted(counts.items(), key=str)))
        if list(results) != [number * number for number in range(SMALL_TASKS)]:
            raise Mismatch(f"wrong results: {results}")
        if len(counts) != len(TAGS):
            raise Mismatch("the tasks did not spread over both clusters")

    def an_actor_that_counts(self) -> None:
        class Tally:
            def __init__(self) -> None:
                self.total = 0

            def add(self, number: int) -> int:
                self.total += number
                return self.total

        tally = rmcs.submit_actor(Tally, name="tally", ready_timeout=STEP_TIMEOUT_S)
        totals = rmcs.get([tally.add.remote(number) for number in range(1, CALLS + 1)], timeout=STEP_TIMEOUT_S)
        self._print(f"   {CALLS} calls on {tally.cluster}, in order; its total is {totals[-1]}")
        explained = tally.explain()
        rmcs.kill(tally)
        deadline = time.monotonic() + END_TIMEOUT_S
        while not tally.state.terminal and time.monotonic() < deadline:
            time.sleep(0.05)
        self._record("actor tally (killed)", {**explained, "state": str(tally.state)})
        expected = [number * (number + 1) // 2 for number in range(1, CALLS + 1)]
        if totals != expected:
            raise Mismatch(f"the actor counted {totals}")

    def a_job_with_its_log(self) -> None:
        job_id = rmcs.submit_job(JOB_ENTRYPOINT)
        self._print(f"   {job_id}: {rmcs.get_job_status(job_id)}")
        rmcs.wait_for_all_jobs([job_id], check_interval=2, timeout=STEP_TIMEOUT_S, raise_on_failure=False)
        status, log = str(rmcs.get_job_status(job_id)), str(rmcs.get_job_logs(job_id))
        self._print(f"   {job_id}: {status}; its log: {log.strip()}")
        explained = rmcs.explain(job_id)
        self._record("job", explained)
        if status != "SUCCEEDED":
            raise Mismatch(f"job {job_id} ended {status}")
        if f"{JOB_GREETING} {explained['cluster']}" not in log:
            raise Mismatch(f"the log of job {job_id} lacks its line")

    def a_failure_as_the_caller_sees_it(self) -> None:
        def parse(text: str) -> int:
            return int(text)

        handle = rmcs.submit_task_async(parse, args=("forty-two",), name="parse")
        try:
            handle.result(timeout=STEP_TIMEOUT_S)
        except ValueError as error:
            import traceback

            self._record("parse (fails on purpose)", handle.explain())
            lines = "".join(traceback.format_exception(error)).splitlines()
            self._print("\n".join(f"   | {line}" for line in lines))
            if handle.cluster is None or handle.cluster not in " ".join(getattr(error, "__notes__", [])):
                raise Mismatch(f"the error does not name the cluster {handle.cluster!r}") from error
            if not isinstance(error.__cause__, rmcs.RemoteTraceback):
                raise Mismatch("the error came without its remote traceback") from error
        else:
            raise Mismatch('int("forty-two") did not raise')

    def requests_to_two_fast_instances_and_a_slow_one(self) -> None:
        from ray_multicluster_scheduler.cli.layout.output import plain_table
        from ray_multicluster_scheduler.serving import SchedulerRequest

        fast, slow = TAGS.values()

        class Reader:
            def __init__(self, pauses_ms: dict[str, int]) -> None:
                from ray_multicluster_scheduler import current

                item = current()
                self.pause_s = pauses_ms[item.cluster if item and item.cluster else ""] / 1000

            def infer(self, page: int) -> str:
                import time

                time.sleep(self.pause_s)
                return f"text of page {page}"

        pauses = {fast: FAST_MS, slow: SLOW_MS}
        cpu = {"CPU": 1}  # two of them fill the preferred cluster
        model = rmcs.deploy(
            Reader, (pauses,), name="reader", replicas=3, resource_requirements=cpu, preferred_cluster=fast
        )
        deadline = time.monotonic() + STEP_TIMEOUT_S
        while model.status()["running"] < 3 or not all(row["instance"] for row in model.status()["instances"]):
            if time.monotonic() > deadline:
                raise Mismatch(f"the three instances do not run: {model.status()['instances']}")
            time.sleep(0.05)
        where = {row["instance"]: row["cluster"] for row in model.status()["instances"]}
        pages = [SchedulerRequest(model_type="reader", input_data=page) for page in range(REQUESTS)]
        tasks = [model.scheduler.schedule(page).task_id for page in pages]
        texts = [model.scheduler.wait(task, STEP_TIMEOUT_S) for task in tasks]
        explained = [model.scheduler.explain(task) for task in tasks]
        served = Counter(row["instance"] for row in explained)
        last = {row["instance"]: row["reason"] for row in explained}
        for instance, cluster in where.items():
            last = {one: why.replace(instance, f"an instance on {cluster}") for one, why in last.items()}
        rows = [(where[one], f"{pauses[where[one]]} ms", count, last[one]) for one, count in served.most_common()]
        self._screen.print(plain_table(("INSTANCE ON", "TAKES", "REQUESTS", "WHY THE LAST ONE WENT THERE"), rows))
        model.delete()
        if texts != [f"text of page {page}" for page in range(REQUESTS)]:
            raise Mismatch("wrong answers")
        if sorted(where.values()) != sorted([fast, fast, slow]):
            raise Mismatch(f"the instances run on {', '.join(where.values())}")
        slowest = next(one for one, cluster in where.items() if cluster == slow)
        if served[slowest] >= min(served[one] for one in where if one != slowest):
            raise Mismatch(f"the slow instance got {served[slowest]} of {REQUESTS} requests")

    def print_table(self) -> None:
        """Prints a table of the items with their clusters and the reasons."""
        from ray_multicluster_scheduler.cli.layout.output import plain_table

        rows = [
            (what, row["cluster"], row["state"], row["attempt"], (row.get("decision") or row)["sentence"])
            for what, row in self._rows
        ]
        self._screen.print("\nWhat ran where, and why", style="bold")
        self._screen.print(plain_table(("WHAT", "CLUSTER", "STATE", "ATTEMPT", "WHY THERE"), rows))

    def _record(self, what: str, explained: Mapping[str, Any]) -> None:
        self._rows.append((what, explained))

    def _print(self, text: str) -> None:
        self._screen.print(text, markup=False)
