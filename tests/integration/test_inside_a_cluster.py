"""The verbs inside a job, a task or an actor: plain Ray calls on the same cluster."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from ray_multicluster_scheduler import (
    ConfigurationError,
    TaskSubmissionError,
    UnifiedScheduler,
    UnknownItemError,
    current,
    explain,
    get,
    get_actor,
    put,
    remote,
    submit_actor,
    submit_task,
    submit_task_async,
    wait,
)
from ray_multicluster_scheduler.local_fleet import LocalFleet
from tests.support.mac_cluster import AGENT, agents_of_mac, config_of_mac

NOTHING = {"CPU": 0}
ACTORS = 30


@pytest.fixture
def mac(fleet: LocalFleet, tmp_path: Path) -> Iterator[UnifiedScheduler]:
    """A scheduler of "mac" alone with a rate limit of one item an hour, which must not apply to inside work."""
    path = config_of_mac(
        fleet, tmp_path, submission_interval_s=3600, submission_interval_kinds=["job", "task", "actor"]
    )
    with UnifiedScheduler(path) as scheduler:
        yield scheduler


def run_job(scheduler: UnifiedScheduler, folder: Path, script: str, **options: Any) -> dict[str, Any]:
    """Run it as a job; returns the values that it passed to `tell`, or fails with its log."""
    tell = "def tell(**said):\n    import json\n    print('TOLD', json.dumps(said), flush=True)\n"
    (folder / "script.py").write_text(tell + textwrap.dedent(script))
    job = scheduler.submit_job_async(f"python {folder / 'script.py'}", **options)
    failed = job.exception(150)
    log = job.logs()
    assert failed is None, log
    reported: dict[str, Any] = {"id": job.id}
    for line in log.splitlines():
        if line.startswith("TOLD "):
            reported |= json.loads(line.removeprefix("TOLD "))
    return reported


def traces(fleet: LocalFleet) -> list[list[str]]:
    """The processes on "mac" that inside work must not start: agents and Ray Client servers."""
    found = []
    for pid in fleet.processes("mac"):
        try:
            command = psutil.Process(pid).cmdline()
        except psutil.NoSuchProcess:
            continue
        if any("ray.util.client.server" in word for word in command) and "--mode=proxy" not in command:
            found.append(command)
    return [*found, *(agent.cmdline() for agent in agents_of_mac(fleet))]


class TestInAJob:
    def test_tasks(self, mac: UnifiedScheduler, tmp_path: Path) -> None:
        reported = run_job(
            mac,
            tmp_path,
            """
            import asyncio
            import ray_multicluster_scheduler as rmcs
            from ray_multicluster_scheduler import *

            def square(x):
                return x * x

            def family():
                return current().id, submit_task(lambda: (current().id, square(3)))

            def fail():
                raise ValueError("no luck")

            @remote(num_cpus=0, num_returns=2)
            def both(x):
                return x, -x

            tell(value=submit_task(square, args=(7,)), current=current().id, cluster=current().cluster)
            handles = [submit_task_async(square, args=(n,), name="sq", tags=["label"], priority=3) for n in range(8)]
            tell(values=get(handles), family=submit_task(family), chained=submit_task(square, args=(handles[3],)))
            over, rest = wait(handles, num_returns=3)
            tell(waited=[len(over), len(rest)], of_a_put=submit_task(sum, args=(put([1, 2, 3]),)))

            async def awaited(handle):
                return await handle

            tell(parts=get(both.remote(4)), awaited=asyncio.run(awaited(handles[2])))
            try:
                submit_task(fail)
            except ValueError as error:
                tell(error=str(error), exact=type(error).__name__, note=error.__notes__[0])
                tell(trace="in fail" in str(error.__cause__))
            slow = submit_task_async(__import__("time").sleep, args=(60,))
            try:
                get([handles[0], slow], timeout=0.2)
            except TaskTimeoutError as error:
                tell(timeout=slow.id in str(error), state=slow.state)
            was = cancel(slow.id)
            tell(cancelled=(was, type(slow.exception(30)).__name__, cancel(slow.id)), explained=explain(handles[0].id))
            """,
        )
        job = reported["id"]
        assert (reported["value"], reported["current"], reported["cluster"]) == (49, job, "mac")
        assert (reported["values"], reported["chained"]) == ([n * n for n in range(8)], 81)
        assert reported["family"] == [job, [job, 9]], "children belong to the job, too"
        assert (reported["waited"], reported["of_a_put"], reported["parts"], reported["awaited"]) == (
            [3, 5],
            6,
            [4, -4],
            4,
        )
        assert (reported["error"], reported["exact"], reported["trace"]) == ("no luck", "ValueError", True)
        assert "on cluster 'mac'" in reported["note"]
        assert (reported["timeout"], reported["state"], reported["cancelled"]) == (
            True,
            "DISPATCHING",
            [True, "TaskCancelledError", False],
        )
        explained = reported["explained"]
        assert (explained["parent"], explained["state"], explained["name"]) == (job, "SUCCEEDED", "sq")
        assert f"by {job}" in explained["sentence"]

    def test_actors(self, mac: UnifiedScheduler, tmp_path: Path) -> None:
        reported = run_job(
            mac,
            tmp_path,
            """
            from ray_multicluster_scheduler import *

            class Counter:
                def __init__(self, start=0):
                    if start < 0:
                        raise ValueError("too low")
                    self.value = start

                def add(self, n):
                    self.value += n
                    return self.value

                def state(self):
                    return "its own"

            def use(counter):
                return get(counter.add.remote(10))

            counter = submit_actor(Counter, args=(1,), resource_requirements={"CPU": 0}, name="counter")
            tell(calls=get([counter.add.remote(n) for n in range(4)]), hidden=get(counter.state.remote()))
            tell(found=get(get_actor("counter").add.remote(0)), passed=submit_task(use, args=(counter,)))
            tell(pool=sorted(ActorPool([counter]).map(lambda actor, n: actor.add.remote(n), [1, 1])))
            try:
                submit_actor(Counter, args=(-1,), resource_requirements={"CPU": 0})
            except ValueError as error:
                tell(refused=str(error))
            kill(counter)
            try:
                get(counter.add.remote(1), timeout=30)
            except ActorDiedError as error:
                tell(dead=str(error))
            try:
                get_actor("nobody")
            except UnknownItemError as error:
                tell(unknown=str(error))
            """,
        )
        assert (reported["calls"], reported["hidden"]) == ([1, 2, 4, 7], "its own")
        assert (reported["found"], reported["passed"], reported["pool"]) == (7, 17, [18, 19])
        assert reported["refused"] == "too low"
        assert "killed" in reported["dead"]
        assert "'nobody'" in reported["unknown"]

    def test_jobs_and_the_cluster(self, mac: UnifiedScheduler, tmp_path: Path) -> None:
        reported = run_job(
            mac,
            tmp_path,
            """
            from ray_multicluster_scheduler import *
            from ray_multicluster_scheduler.app.client_api.unified_scheduler import UnifiedScheduler as Same

            first = submit_job('python -c "from ray_multicluster_scheduler import *; print(current())"')
            key = [submit_job("true", idempotency_key="k") for _ in range(2)]
            endless = submit_job_async("sleep 300")
            tell(keys=len(set(key)), status=wait_for_all_jobs([first, key[0]], timeout=100), first=first)
            tell(log=get_job_logs(first), stopped=stop_job(endless.id), end=type(endless.exception(60)).__name__)
            tell(listed=[row["job_id"] for row in list_jobs()], explained=explain(first))
            tell(all={first, key[0], endless.id} == {row["job_id"] for row in list_jobs()})
            tell(info=get_job_info(first), kind=UnifiedScheduler is Same, same=type(UnifiedScheduler()) is Same)
            tell(again=type(initialize_scheduler_environment("nowhere.yaml")) is Same)
            tell(clusters=[row["name"] for row in list_clusters()], room=plan({"CPU": 1}).cluster)
            tell(cpus=[cluster_info("mac")["total"]["CPU"], fleet_resources()["total"]["CPU"]])
            tell(too_big=plan({"CPU": 64}).code)
            """,
        )
        assert (reported["keys"], set(reported["status"].values())) == (1, {"SUCCEEDED"})
        assert f"id='{reported['first']}'" in reported["log"], "the child knows who it is"
        assert (reported["stopped"], reported["end"], reported["all"]) == (True, "TaskCancelledError", True)
        assert (reported["explained"]["parent"], reported["explained"]["kind"]) == (reported["id"], "job")
        assert (reported["info"]["status"], reported["info"]["cluster"]) == ("SUCCEEDED", "mac")
        assert reported["kind"]
        assert reported["same"]
        assert reported["again"]
        assert (reported["clusters"], reported["room"], reported["cpus"], reported["too_big"]) == (
            ["mac"],
            "mac",
            [2.0, 2.0],
            "TOO_BIG",
        )

    def test_other_clusters_and_unsupported_options_are_refused(self, mac: UnifiedScheduler, tmp_path: Path) -> None:
        reported = run_job(
            mac,
            tmp_path,
            """
            from ray_multicluster_scheduler import *

            def refused(verb, *args, **options):
                try:
                    verb(*args, **options)
                except ConfigurationError as error:
                    return str(error)
                return "no error"

            tell(task=refused(submit_task, len, preferred_cluster="linux"))
            tell(job=refused(submit_job, "true", preferred_cluster="linux"))
            tell(actor=refused(submit_actor, dict, preferred_cluster="linux"))
            tell(allowed=refused(submit_task, len, allow_clusters=["linux"]))
            tell(denied=refused(submit_task, len, deny_clusters=["mac"]))
            tell(info=refused(cluster_info, "linux"), tags=refused(submit_task, len, require_tags=["x"]))
            with ClusterContextManager.use("linux"):
                tell(context=refused(submit_task, len))
            tell(timeout=refused(submit_task, len, run_timeout=3), wrong=refused(submit_task, len, retrys=3))
            tell(own=submit_task(len, args=("ab",), preferred_cluster="mac", allow_clusters=["mac", "linux"]))
            """,
        )
        for asked in ("task", "job", "actor", "context"):
            assert "inside cluster 'mac'" in reported[asked]
            assert "'linux' was requested" in reported[asked]
        assert "allow_clusters" in reported["allowed"]
        assert "deny_clusters" in reported["denied"]
        assert "'linux'" in reported["info"]
        assert "require_tags cannot be used" in reported["tags"]
        assert "run_timeout cannot be used" in reported["timeout"]
        assert "no option 'retrys'" in reported["wrong"]
        assert reported["own"] == 2

    def test_thirty_actors_start_no_agent(self, mac: UnifiedScheduler, fleet: LocalFleet, tmp_path: Path) -> None:
        """No agent, no Ray Client server, and no rate limit, although one is set for outside work."""
        before = traces(fleet)
        job = mac.submit_job_async(f"python {_thirty(tmp_path)}")
        seen: list[list[str]] = []
        while not job.done():
            seen += [one for one in traces(fleet) if one not in before]
            mac.wait_for_a_job([job.id], 0.5)
        assert job.exception() is None, job.logs()
        assert f"ACTORS {ACTORS}" in job.logs()
        assert seen == []

    def test_shipped_files_of_the_caller_are_kept(self, mac: UnifiedScheduler, tmp_path: Path) -> None:
        for name in ("mine", "work"):
            (tmp_path / name).mkdir()
        (tmp_path / "mine" / "__init__.py").write_text("VALUE = 'mine'")
        (tmp_path / "work" / "data.txt").write_text("data")
        reported = run_job(
            mac,
            tmp_path,
            """
            from pathlib import Path
            import mine
            from ray_multicluster_scheduler import *

            def look():
                import mine
                return mine.VALUE, Path("data.txt").read_text()

            tell(here=look(), there=submit_task(look))
            env = {"env_vars": {"X": "1"}}
            tell(env=submit_task(lambda: (__import__("os").environ["X"], look(), current().id), runtime_env=env))
            """,
            runtime_env={"py_modules": [str(tmp_path / "mine")], "working_dir": str(tmp_path / "work")},
        )
        assert reported["here"] == reported["there"] == ["mine", "data"]
        assert reported["env"] == ["1", ["mine", "data"], reported["id"]]

    def test_an_interrupted_program_stops_its_jobs(self, mac: UnifiedScheduler, tmp_path: Path) -> None:
        (tmp_path / "script.py").write_text(
            textwrap.dedent("""
                import os, signal, time
                from ray_multicluster_scheduler import *

                @graceful_shutdown_on_keyboard_interrupt
                def main():
                    print("CHILD", submit_job("sleep 300"), flush=True)
                    os.kill(os.getpid(), signal.SIGINT)
                    time.sleep(30)

                try:
                    main()
                except SystemExit as end:
                    (row,) = list_jobs()
                    wait_for_all_jobs([row["job_id"]], timeout=60)
                    print("ENDED", end.code, get_job_status(row["job_id"]))
            """)
        )
        job = mac.submit_job_async(f"python {tmp_path / 'script.py'}")
        assert job.exception(100) is None, job.logs()
        assert "ENDED 130 STOPPED" in job.logs()


def _thirty(folder: Path) -> Path:
    """A program that creates thirty actors, all alive at the same time."""
    path = folder / "thirty.py"
    path.write_text(
        textwrap.dedent(f"""
            from ray_multicluster_scheduler import get, submit_actor_async

            class Member:
                def __init__(self, number):
                    self.number = number

                def who(self):
                    import os
                    return self.number, os.getpid()

            members = [
                submit_actor_async(Member, args=(n,), resource_requirements={{"CPU": 0}}) for n in range({ACTORS})
            ]
            answers = get([member.who.remote() for member in members])
            assert [number for number, _ in answers] == list(range({ACTORS}))
            print("ACTORS", len({{pid for _, pid in answers}}))
        """)
    )
    return path


class TestInATask:
    def test_the_verbs(self, scheduler: UnifiedScheduler) -> None:
        def square(x: int) -> int:
            return x * x

        def fail() -> None:
            raise KeyError("gone")

        class Counter:
            def __init__(self, value: int) -> None:
                self.value = value

            def add(self, n: int) -> int:
                self.value += n
                return self.value

            def whose(self) -> str:
                return current().id

        def work() -> dict[str, Any]:
            reported: dict[str, Any] = {"id": current().id, "cluster": current().cluster}
            handles = [submit_task_async(square, args=(n,), resource_requirements=NOTHING) for n in range(5)]
            reported["squares"] = get(handles)
            reported["waited"] = [len(part) for part in wait(handles, num_returns=2)]
            reported["child"] = submit_task(
                lambda: (current().id, submit_task(square, args=(6,), resource_requirements=NOTHING))
            )
            counter = submit_actor(Counter, args=(1,), resource_requirements=NOTHING, name="counter")
            reported["actor"] = get([counter.add.remote(put(4)), get_actor("counter").add.remote(1)])
            reported["whose"] = get(counter.whose.remote())
            reported["explained"] = explain(handles[0].id)
            try:
                submit_task(fail, resource_requirements=NOTHING)
            except KeyError as error:
                reported["error"] = error.args[0]
            try:
                submit_task(square, args=(1,), preferred_cluster="elsewhere")
            except ConfigurationError as error:
                reported["elsewhere"] = str(error)
            return reported

        handle = submit_task_async(work)
        reported = handle.result(120)
        assert (reported["id"], reported["cluster"]) == (handle.id, handle.cluster)
        assert (reported["squares"], reported["waited"]) == ([0, 1, 4, 9, 16], [2, 3])
        assert reported["child"] == (handle.id, 36), "a child of the task knows whose child it is"
        assert (reported["actor"], reported["whose"]) == ([5, 6], handle.id)
        assert reported["explained"]["parent"] == handle.id
        assert reported["error"] == "gone"
        assert "'elsewhere' was requested" in reported["elsewhere"]

    def test_many_actors_start_no_agent(self, fleet: LocalFleet, mac: UnifiedScheduler) -> None:
        class Member:
            def who(self) -> int:
                import os

                return os.getpid()

        def work() -> int:
            Remote = remote(num_cpus=0)(Member)  # noqa: N806 - a class
            members = [Remote.remote() for _ in range(10)]
            return len(set(get([member.who.remote() for member in members])))

        before = traces(fleet)
        assert mac.submit_task(work) == 10
        agent = [AGENT in command for command in traces(fleet) if command not in before]
        assert agent in ([], [True]), "the one that the task itself came through"

    def test_an_actor_from_outside_is_used_inside(self, scheduler: UnifiedScheduler) -> None:
        class Counter:
            def __init__(self) -> None:
                self.value = 0

            def add(self, n: int) -> int:
                self.value += n
                return self.value

            def fail(self) -> None:
                raise LookupError("nothing there")

        def use(counter: Any) -> tuple[Any, ...]:
            def deeper(same: Any) -> int:
                return int(get(same.add.remote(100)))

            try:
                get(counter.fail.remote())
            except LookupError as error:
                failed = str(error)
            values = get([counter.add.remote(n) for n in (1, 2)])
            later = submit_task_async(lambda: 10, resource_requirements=NOTHING)
            values += get([counter.add.remote(later), counter.add.remote(n=later)])
            return values, failed, submit_task(deeper, args=(counter,), resource_requirements=NOTHING), counter

        counter = submit_actor(Counter)
        try:
            values, failed, deeper, back = submit_task(use, args=(counter,))
            assert (values, failed, deeper) == ([1, 3, 13, 23], "nothing there", 123)
            assert back is counter, "in its own program it is the handle that was sent"
            assert get(counter.add.remote(0)) == 123
        finally:
            counter.kill()

    def test_handles_of_the_cluster_cannot_be_returned(self, scheduler: UnifiedScheduler) -> None:
        def leak() -> Any:
            return submit_task_async(len, args=("ab",), resource_requirements=NOTHING)

        with pytest.raises(TaskSubmissionError, match="cannot leave cluster"):
            submit_task(leak)

    def test_outside_ids_are_unknown_inside(self, scheduler: UnifiedScheduler) -> None:
        other = submit_task_async(int)
        other.result(60)

        def ask(item_id: str) -> None:
            explain(item_id)

        with pytest.raises(UnknownItemError, match=other.id):
            submit_task(ask, args=(other.id,))


PROGRAM = """
    import sys
    import ray_multicluster_scheduler as ray
    from ray_multicluster_scheduler import get, initialize_scheduler_environment, submit_task, TaskHandle

    @ray.remote(num_cpus=0)
    def fib(n):
        return n if n < 2 else sum(ray.get([fib.remote(n - 1), fib.remote(n - 2)]))

    def square(x):
        return x * x

    def captured(n) -> TaskHandle:
        return [submit_task(square, args=(k,), resource_requirements={"CPU": 0}) for k in range(n)]

    initialize_scheduler_environment(sys.argv[1])
    print(submit_task(captured, args=(3,)), get(fib.remote(3)), ray.get(fib.remote(1)))
"""


def test_functions_of_main_capture_the_verbs(fleet: LocalFleet, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    done = subprocess.run(
        [sys.executable, str(program), str(fleet.config_path)], capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0] == "[0, 1, 4] 2 1"
