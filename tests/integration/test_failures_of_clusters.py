"""A cluster dies or is paused for longer than all timeouts: its work is moved, ended or waited for, each by its rule.

Every attempt writes its number to a file, so that repetitions are detected.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from ray_multicluster_scheduler import (
    ActorDiedError,
    ClusterLostError,
    SchedulerError,
    TaskState,
    UnifiedScheduler,
    WorkerCrashedError,
    get,
)
from ray_multicluster_scheduler.local_fleet import LocalFleet
from ray_multicluster_scheduler.scheduler.connection import ray_client_pool
from tests.support.mac_cluster import until

QUICK = {
    "heartbeat_s": 1,
    "lease_s": 8,
    "lost_after_s": 18,
    "snapshot_interval_s": 0.5,
    "breaker_recovery_s": 1,
    "retry_backoff": {"base_s": 0},
}
HEAD = ("gcs_server", "raylet")
ON_MAC: dict[str, Any] = {"preferred_cluster": "mac"}
NOTHING: dict[str, Any] = {"resource_requirements": {"CPU": 0}}


@contextmanager
def impatient(fleet: LocalFleet, folder: Path, **settings: Any) -> Iterator[UnifiedScheduler]:
    """A scheduler for both clusters with short timeouts; its agents run already."""
    whole = yaml.safe_load(Path(fleet.config_path).read_text())
    config = folder / "clusters.yaml"
    config.write_text(yaml.safe_dump({**whole, "settings": {**whole["settings"], **QUICK, **settings}}))
    with UnifiedScheduler(config) as scheduler:
        first: dict[str, Any] = {"fallback": "wait"}
        get(
            [scheduler.submit_task_async(len, ("",), preferred_cluster=one, **first) for one in ("linux", "mac")],
            timeout=60,
        )
        yield scheduler


def worker() -> Callable[[str], tuple[str, int]]:
    """Records its attempt every tenth of a second, and its end once, when the test allows it."""

    def work(folder: str) -> tuple[str, int]:
        import os
        import time

        from ray_multicluster_scheduler import current

        me = current()
        while not os.path.exists(f"{folder}/go"):
            with open(f"{folder}/ticks", "a") as file:
                file.write(f"{me.attempt}\n")
            time.sleep(0.1)
        with open(f"{folder}/done", "a") as file:
            file.write(f"{me.attempt}\n")
        return me.cluster, me.attempt

    return work


def holder() -> type:
    class Holder:
        def __init__(self) -> None:
            self.calls = 0

        def call(self) -> int:
            self.calls += 1
            return self.calls

        def sleep(self) -> None:
            import time

            time.sleep(600)

    return Holder


def job_script(folder: Path, name: str) -> str:
    """A line for each attempt; it ends when the test allows it."""
    return f"echo $RMCS_CLUSTER $RMCS_ATTEMPT >> {folder}/{name}; until test -e {folder}/go; do sleep 0.1; done"


def agent_on_mac(scheduler: UnifiedScheduler) -> str:
    """The submission id of the agent that the scheduler uses there."""
    link = scheduler._started()[0].links.existing_link("mac")
    assert link is not None
    return str(link.agent)


def codes(handle: Any) -> list[str]:
    return [step["code"] for step in handle.explain()["history"]]


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_a_power_cut_with_a_task_an_actor_and_jobs_running(fleet: LocalFleet, tmp_path: Path) -> None:
    with impatient(fleet, tmp_path) as scheduler:
        task = scheduler.submit_task_async(worker(), (str(tmp_path),), **ON_MAC)
        actor = scheduler.submit_actor(holder(), **NOTHING, **ON_MAC)
        (tmp_path / "lost").mkdir()
        moves = scheduler.submit_actor(holder(), restart_elsewhere=True, max_restarts=1, **NOTHING, **ON_MAC)
        stays = scheduler.submit_actor(holder(), max_restarts=1, **NOTHING, **ON_MAC)
        assert [one.call.remote().result(60) for one in (actor, moves, stays)] == [1, 1, 1]
        lost = scheduler.submit_task_async(worker(), (str(tmp_path / "lost"),), lost_retries=0, **NOTHING, **ON_MAC)
        until(lambda: lost.state is TaskState.RUNNING, 60)
        once = scheduler.submit_job_async(job_script(tmp_path, "once"), **ON_MAC)
        again = scheduler.submit_job_async(job_script(tmp_path, "again"), retry_lost=True, **ON_MAC)
        until(lambda: bool(lines(tmp_path / "ticks")), 60)
        until(lambda: bool(lines(tmp_path / "once")) and bool(lines(tmp_path / "again")), 60)
        assert {one.cluster for one in (task, actor, moves, stays, lost, once, again)} == {"mac"}
        fleet.kill("mac")
        try:
            calls = [one.call.remote() for one in (moves, stays)]
            # It is known to be dead: nothing waits for the lease.
            until(lambda: codes(task).count("PROCESSES_DEAD") == 1, 60, task.explain)
            assert "CONTACT_LOST" not in codes(task)
            # The task moves to the cluster that is left, and so does the actor that may.
            until(lambda: "2" in lines(tmp_path / "ticks"), 60)
            until(lambda: moves.state is TaskState.RUNNING and moves.attempt > 1, 120, moves.explain)
            assert moves.cluster == "linux"
            assert moves.call.remote().result(60) == 1, "without its state"
            history = moves.explain()["history"]
            assert [step["cluster"] for step in history if step["state"] == "RUNNING"] == ["mac", "linux"]
            for call in calls:
                assert isinstance(call.exception(60), (ActorDiedError, ClusterLostError))
            assert stays.state is not TaskState.RUNNING
            assert "mac" in stays.explain()["sentence"], "it waits for its own cluster"
            for one in (moves, stays):
                one.kill()
            with pytest.raises(ClusterLostError, match="mac") as no_retry:
                lost.result(60)
            assert no_retry.value.task_id == lost.id
            assert no_retry.value.next_step
            until(lambda: actor.state is TaskState.FAILED, 60)
            until(lambda: scheduler.job_info(once.id)["status"] == "LOST", 60)
            with pytest.raises(ActorDiedError, match=actor.id):
                actor.call.remote().result(30)
        finally:
            fleet.start("mac")
        # It is another Ray session: the jobs that were there are known to be dead; one of them may be repeated.
        with pytest.raises(ClusterLostError, match="mac") as caught:
            once.result(90)
        assert (caught.value.task_id, caught.value.cluster) == (once.id, "mac")
        assert caught.value.next_step
        until(lambda: len(lines(tmp_path / "again")) == 2, 60)
        (tmp_path / "go").touch()
        assert task.result(60) == ("linux", 2)
        assert again.result(60) == "SUCCEEDED"
        assert scheduler.submit_task(len, ("back",), **ON_MAC, fallback="wait") == 4, "it is used again"
    assert lines(tmp_path / "done") == ["2"]
    assert lines(tmp_path / "once") == ["mac 1"]
    assert [line.split()[1] for line in lines(tmp_path / "again")] == ["1", "2"]


def test_a_head_and_its_raylet_are_killed(fleet: LocalFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the cluster dies by itself. No timeout would declare it lost before the end of the test. The agents
    are taken over from a program before."""
    monkeypatch.delenv("RMCS_AGENT_LINGER_S")
    monkeypatch.setenv("RMCS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(ray_client_pool, "_TAKE_OVER_S", 60.0)
    settings = {"lease_s": 300, "lost_after_s": 400, "agent_linger_s": 10}
    with impatient(fleet, tmp_path, **settings) as scheduler:
        left = agent_on_mac(scheduler)
    with impatient(fleet, tmp_path, **settings) as scheduler:
        assert agent_on_mac(scheduler) == left
        task = scheduler.submit_task_async(worker(), (str(tmp_path),), **ON_MAC)
        until(lambda: bool(lines(tmp_path / "ticks")), 60)
        root = str(fleet.folder("mac").root)
        commands = [(one, one.info["cmdline"] or [""]) for one in psutil.process_iter(["cmdline"])]
        killed = [one for one, (program, *rest) in commands if Path(program).name in HEAD and root in " ".join(rest)]
        assert len(killed) == len(HEAD)
        for process in killed:
            process.kill()
        try:
            until(lambda: {*lines(tmp_path / "ticks")} != {"1"}, 120, task.explain)
            (tmp_path / "go").touch()
            assert task.result(60) == ("linux", task.attempt)
            assert "PROCESSES_DEAD" in codes(task) or "NODE_DIED" in codes(task), "its agent may have lived to say so"
        finally:
            fleet.kill("mac")
            fleet.start("mac")
    ticks = lines(tmp_path / "ticks")
    assert ticks == sorted(ticks), "never two at a time"
    assert lines(tmp_path / "done") == [str(task.attempt)]


@contextmanager
def stopped_head(fleet: LocalFleet, names: tuple[str, ...]) -> Iterator[None]:
    """SIGSTOP of the GCS, the raylet or both of "mac"; agents and workers go on."""
    head = []
    for pid in fleet.processes("mac"):
        with suppress(psutil.NoSuchProcess):  # a worker that has just ended
            process = psutil.Process(pid)
            head += [process] if process.name() in names else []
    assert len(head) == len(names)
    for process in head:
        process.suspend()
    try:
        yield
    finally:
        for process in head:
            process.resume()


@pytest.mark.parametrize("names", [HEAD, ("raylet",)], ids="+".join)
def test_a_stopped_head_gives_back_what_has_not_begun(
    fleet: LocalFleet, tmp_path: Path, names: tuple[str, ...]
) -> None:
    """No timeout would end an attempt before the end of the test."""

    def note(path: str) -> tuple[str, int]:
        from ray_multicluster_scheduler import current

        me = current()
        with open(path, "a") as file:
            file.write(f"{me.cluster}\n")
        return me.cluster, me.attempt

    class Noted:
        def __init__(self, path: str) -> None:
            note(path)

        def call(self) -> int:
            return 1

    with impatient(fleet, tmp_path, heartbeat_s=5, lease_s=300, lost_after_s=400, start_grace_s=400) as scheduler:
        running = scheduler.submit_task_async(worker(), (str(tmp_path),), **ON_MAC)
        until(lambda: bool(lines(tmp_path / "ticks")), 60)
        with stopped_head(fleet, names):
            task = scheduler.submit_task_async(note, (str(tmp_path / "task"),), **NOTHING, **ON_MAC)
            actor = scheduler.submit_actor(Noted, (str(tmp_path / "actor"),), **NOTHING, **ON_MAC)
            assert task.result(120) == ("linux", 2)
            assert actor.call.remote().result(120) == 1
            state = next(one for one in scheduler.list_clusters() if one["name"] == "mac")["state"]
            assert (state, running.state) == ("HEAD_SILENT", TaskState.RUNNING)
        until(lambda: next(one for one in scheduler.list_clusters() if one["name"] == "mac")["state"] == "UP", 60)
        assert scheduler.submit_task(len, ("back",), **ON_MAC, fallback="wait") == 4, "Ray has caught up"
        (tmp_path / "go").touch()
        assert running.result(60) == ("mac", 1)
        for one in (task, actor):
            assert "TAKEN_BACK" in codes(one)
        actor.kill()
    assert lines(tmp_path / "task") == lines(tmp_path / "actor") == ["linux"]


def test_a_stopped_cluster_keeps_only_what_had_begun(fleet: LocalFleet, tmp_path: Path) -> None:
    """Twelve tasks of 4 s on two clusters. Those with an environment of their own wait for new workers when one of the
    clusters is stopped; they run on the other one while it is."""

    def nap(folder: str, name: str) -> str:
        import time

        from ray_multicluster_scheduler import current

        with open(f"{folder}/{name}", "a") as file:
            file.write(f"{current().cluster}\n")
        time.sleep(4 if name != "first" else 0)
        return str(current().cluster)

    half: dict[str, Any] = {"resource_requirements": {"CPU": 0.5}}
    new_workers: dict[str, Any] = {"runtime_env": {"env_vars": {"NEW": tmp_path.name}}}
    with impatient(fleet, tmp_path, heartbeat_s=5, lease_s=300, lost_after_s=400, start_grace_s=400) as scheduler:
        get([scheduler.submit_task_async(nap, (str(tmp_path), "first"), **half) for _ in range(4)], timeout=120)
        (tmp_path / "first").unlink()
        names = [f"t{number}" for number in range(12)]
        handles = {
            name: scheduler.submit_task_async(nap, (str(tmp_path), name), **half, **(new_workers if at >= 4 else {}))
            for at, name in enumerate(names)
        }
        until(lambda: sum(one.cluster is not None for one in handles.values()) >= 8, 60)
        with stopped_head(fleet, HEAD):
            sent = {name for name in names if handles[name].cluster == "mac"}
            until(lambda: all(handles[one].done() or lines(tmp_path / one) == ["mac"] for one in names), 200)
            begun = {name for name in names if lines(tmp_path / name) == ["mac"]}
            sent -= begun
            assert sent, "they had been sent there and had not begun"
            rest = [handles[name] for name in names if name not in begun]
            assert get(rest, timeout=0) == ["linux"] * len(rest)
            assert all("TAKEN_BACK" in codes(handles[name]) for name in sent)
            assert all(codes(one).count("STARTED") == 1 for one in rest)
            recalled = [step for name in sent for step in handles[name].explain()["history"]]
            assert any("head (GCS or raylet) has not answered" in step["sentence"] for step in recalled)
            assert next(one for one in scheduler.list_clusters() if one["name"] == "mac")["state"] == "HEAD_SILENT"
        assert get([handles[name] for name in begun], timeout=120) == ["mac"] * len(begun)
        assert scheduler.submit_task(len, ("back",), **ON_MAC, fallback="wait") == 4, "Ray has caught up"
    assert {name: lines(tmp_path / name) for name in names} == {
        name: ["mac" if name in begun else "linux"] for name in names
    }


def test_a_stopped_cluster_that_runs_only_jobs_is_noticed(
    fleet: LocalFleet, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """No agent is there that would report it."""
    with UnifiedScheduler(fleet.config_path) as scheduler:
        job = scheduler.submit_job_async(job_script(tmp_path, "job"), **ON_MAC)
        until(lambda: bool(lines(tmp_path / "job")), 120)

        def state() -> str:
            return str(next(one for one in scheduler.list_clusters(refresh=False) if one["name"] == "mac")["state"])

        until(lambda: job.state is TaskState.RUNNING and state() == "UP", 60)
        with stopped_head(fleet, HEAD):
            until(lambda: state() == "STALE_SNAPSHOT", 60)
            until(lambda: "CLUSTER_SUSPECT" in codes(job), 60)
            until(lambda: "rmcs: 1 item on mac: mac has not answered" in capfd.readouterr().err, 60)
            assert job.state is TaskState.RUNNING
        until(lambda: "CONTACT_AGAIN" in codes(job), 60)
        (tmp_path / "go").touch()
        assert job.result(120) == "SUCCEEDED"


def test_declare_dead_moves_work_at_once(fleet: LocalFleet, tmp_path: Path) -> None:
    """No timeout would declare it lost before the end of the test, and it is as if it were on another machine."""
    with impatient(fleet, tmp_path, lease_s=300, lost_after_s=400) as scheduler:
        task = scheduler.submit_task_async(worker(), (str(tmp_path),), **ON_MAC)
        actor = scheduler.submit_actor(holder(), **NOTHING, **ON_MAC)
        call = actor.sleep.remote()
        job = scheduler.submit_job_async(job_script(tmp_path, "job"), **ON_MAC)
        until(lambda: bool(lines(tmp_path / "ticks")) and bool(lines(tmp_path / "job")), 60)
        with pytest.raises(SchedulerError, match="was not declared dead: its link is up"):
            scheduler.declare_dead("mac")
        for lock_file in fleet.folder("mac").root.rglob("rmcs-agent-*.lock"):
            lock_file.unlink()
        fleet.kill("mac")
        try:
            until(lambda: _declared_dead(scheduler), 60)
            with pytest.raises(ClusterLostError, match="declared"):
                call.result(60)
            with pytest.raises(ClusterLostError, match="an operator declared mac dead: burnt"):
                job.result(60)
            until(lambda: actor.state is TaskState.FAILED, 60)
            until(lambda: (task.cluster, task.attempt, task.state) == ("linux", 2, TaskState.RUNNING), 30)
            assert scheduler.drain("linux", timeout=0) is False
            (tmp_path / "go").touch()
            assert task.result(60) == ("linux", 2)
            assert scheduler.drain("linux", timeout=30) is True
        finally:
            fleet.start("mac")
        waiting = scheduler.submit_task_async(len, ("back",))
        assert waiting.result(90) == 4
        assert waiting.cluster == "mac", "it is heard of again, and linux is drained"
        scheduler.uncordon("linux")
        assert scheduler.submit_task(len, ("open",), preferred_cluster="linux", fallback="wait") == 4
    assert lines(tmp_path / "done") == ["2"]
    assert lines(tmp_path / "job") == ["mac 1"]


def _declared_dead(scheduler: UnifiedScheduler) -> bool:
    """Accepted once the cluster has been silent for a moment."""
    try:
        return len(scheduler.declare_dead("mac", "burnt")) == 3
    except SchedulerError:
        return False


def test_a_cluster_that_returns_after_its_work_was_moved(
    fleet: LocalFleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is paused for longer than the lease. Its task runs elsewhere by then, and must not continue on resume."""
    with impatient(fleet, tmp_path) as scheduler:
        task = scheduler.submit_task_async(worker(), (str(tmp_path),), **ON_MAC)
        moves = scheduler.submit_actor(holder(), restart_elsewhere=True, max_restarts=1, **NOTHING, **ON_MAC)
        assert [moves.call.remote().result(60) for _ in range(2)] == [1, 2]
        both_cpus: dict[str, Any] = {"resource_requirements": {"CPU": 2}, "fallback": "wait"}
        queued = scheduler.submit_task_async(len, ("back",), **both_cpus, **ON_MAC)
        job = scheduler.submit_job_async(job_script(tmp_path, "job"), **ON_MAC)
        until(lambda: bool(lines(tmp_path / "ticks")) and bool(lines(tmp_path / "job")), 60)
        fleet.pause("mac")
        try:
            # It may go on at any time, so the lease decides, and the program is told.
            until(lambda: "CLUSTER_SUSPECT" in codes(task), 60, task.explain)
            wait = "what runs there may be alive, so it goes elsewhere in"
            assert wait in task.explain()["sentence"]
            assert wait in next(one["sentence"] for one in scheduler.list_clusters() if one["name"] == "mac")
            until(lambda: "2" in lines(tmp_path / "ticks"), 60)
            said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("rmcs: ")]
            (leased,) = [line for line in said if "what runs there may be alive" in line]
            assert leased.startswith("rmcs: 2 items on mac: mac has been silent for ")
            assert all("a job may still run there" in line for line in said if line != leased), said
            until(lambda: moves.state is TaskState.RUNNING and moves.attempt > 1, 120, moves.explain)
            assert (task.cluster, moves.cluster) == ("linux", "linux")
            until(lambda: scheduler.job_info(job.id)["status"] == "LOST", 60)
            slept = len(lines(tmp_path / "ticks"))
        finally:
            fleet.resume("mac")
        # A job has no lease: it was only waited for, and goes on as the attempt that it was.
        until(lambda: scheduler.job_info(job.id)["status"] == "RUNNING", 60)
        woken = lines(tmp_path / "ticks")[slept:]
        assert woken.count("1") < 100, "the first attempt goes on as if nothing had happened"

        def quiet() -> bool:
            before = len(lines(tmp_path / "ticks"))
            time.sleep(1)
            return "1" not in lines(tmp_path / "ticks")[before:]

        until(quiet, 30)  # it would go on as long as the test lets it
        assert moves.call.remote().result(30) == 1, "made anew, without its state"
        (tmp_path / "go").touch()
        assert task.result(60) == ("linux", 2)
        assert (job.result(60), job.attempt) == ("SUCCEEDED", 1)
        assert queued.result(60) == 4, "it is used again"
        moves.kill()
    assert lines(tmp_path / "done") == ["2"], "the attempt that was given up has done nothing after all"
    assert lines(tmp_path / "job") == ["mac 1"]


def test_a_crashing_task_uses_only_its_own_retry_budget(scheduler: UnifiedScheduler, tmp_path: Path) -> None:
    def poison(path: str) -> None:
        import os

        with open(path, "a") as file:
            file.write("x\n")
        os._exit(1)

    def honest(number: int) -> int:
        import time

        time.sleep(0.1)
        return number

    where: dict[str, Any] = {"preferred_cluster": "mac", "fallback": "wait"}
    bad = scheduler.submit_task_async(poison, (str(tmp_path / "runs"),), crash_retries=1, **where)
    good = [scheduler.submit_task_async(honest, (number,), crash_retries=0, **where) for number in range(20)]
    with pytest.raises(WorkerCrashedError, match=bad.id) as caught:
        bad.result(60)
    assert (caught.value.task_id, caught.value.cluster) == (bad.id, "mac")
    assert get(good, timeout=60) == list(range(20))
    assert [handle.attempt for handle in good] == [1] * 20
    assert (bad.attempt, lines(tmp_path / "runs")) == (2, ["x"] * 2)
    assert next(one for one in scheduler.list_clusters() if one["name"] == "mac")["state"] == "UP", "not its fault"
