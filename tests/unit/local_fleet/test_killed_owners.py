"""A fleet is removed completely after its owner or supervisors were killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from ray_multicluster_scheduler.local_fleet import LocalCluster, LocalFleet
from ray_multicluster_scheduler.local_fleet.layout import PREFIX, ClusterRecord, FleetRecord, cluster_dir
from ray_multicluster_scheduler.local_fleet.processes import Identity
from ray_multicluster_scheduler.local_fleet.sweep import sweep_stale
from tests.support.eventually import until

OWNER = """
import json, os, sys, time
from ray_multicluster_scheduler.local_fleet import LocalCluster, LocalFleet
fake, how = sys.argv[1:]
with LocalFleet(LocalCluster("a"), LocalCluster("b"), ray_python=fake) as fleet:
    report = {"pids": fleet.processes("a") + fleet.processes("b"), "root": str(fleet.folder("a").root.parent),
              "supervisors": [fleet.supervisor("a"), fleet.supervisor("b")]}
    if how == "forked" and os.fork() == 0:
        time.sleep(300)  # holds copies of the pipes to the supervisors
        os._exit(0)
    print(json.dumps(report), flush=True)
    time.sleep(300)
"""


class Owner:
    """A program of its own that holds a fleet."""

    def __init__(self, fake: Path, how: str = "plain") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNER, str(fake), how],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # a foreground process group of its own, as a terminal makes one
            text=True,
        )
        assert self.process.stdout is not None
        report: dict[str, Any] = json.loads(self.process.stdout.readline())
        self.pids: list[int] = report["pids"]
        self.supervisors: list[int] = report["supervisors"]
        self.root = Path(report["root"])

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def owners(fake_python: Path, base: Path) -> Iterator[list[Owner]]:
    made: list[Owner] = []
    yield made
    for owner in made:
        owner.end()


def left(owner: Owner) -> list[object]:
    """What is still there after a while."""
    deadline = time.monotonic() + 60
    while True:
        found: list[object] = [pid for pid in owner.pids + owner.supervisors if _alive(pid)]
        found += [owner.root] if owner.root.exists() else []
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_kill_9_of_the_owner(fake_python: Path, owners: list[Owner]) -> None:
    owners.append(owner := Owner(fake_python))
    assert all(map(_alive, owner.pids))
    owner.process.kill()
    assert left(owner) == []


def test_kill_9_of_the_owner_while_a_forked_child_holds_the_pipes(fake_python: Path, owners: list[Owner]) -> None:
    owners.append(owner := Owner(fake_python, "forked"))
    owner.process.kill()
    assert left(owner) == []


def test_ctrl_c_in_the_terminal(fake_python: Path, owners: list[Owner]) -> None:
    owners.append(owner := Owner(fake_python))
    os.killpg(owner.process.pid, signal.SIGINT)
    _, errors = owner.process.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors
    assert owner.process.returncode != 0
    # The owner itself has waited until all was gone.
    assert not owner.root.exists()
    assert not any(map(_alive, owner.pids + owner.supervisors))


def test_kill_9_of_the_owner_in_the_middle_of_the_start(fake_python: Path, base: Path) -> None:
    code = (
        "import os, sys; from ray_multicluster_scheduler.local_fleet import LocalCluster, LocalFleet; "
        "LocalFleet(LocalCluster('a'), LocalCluster('b'), ray_python=sys.argv[1], "
        "progress=lambda name, text: os.kill(os.getpid(), 9)).start_all()"
    )
    done = subprocess.run([sys.executable, "-c", code, str(fake_python)], timeout=120)
    assert done.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (list(base.iterdir()) or _started_in(base)):
        time.sleep(0.1)
    assert list(base.iterdir()) == []
    assert _started_in(base) == []


def _started_in(base: Path) -> list[int]:
    """Processes of clusters in that folder."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("TMPDIR", "").startswith(f"{base}/") and _alive(process.pid):
                found.append(process.pid)
    return found


def test_sigterm_ends_the_owner_and_the_supervisors_clean_up(fake_python: Path, owners: list[Owner]) -> None:
    owners.append(owner := Owner(fake_python))
    owner.process.terminate()
    assert left(owner) == []


def test_owner_and_supervisors_killed_at_once_the_next_fleet_sweeps(
    fake_python: Path, base: Path, owners: list[Owner]
) -> None:
    owners.append(owner := Owner(fake_python))
    owners.append(neighbour := Owner(fake_python))
    records = [cluster_dir(owner.root, index).record for index in range(2)]
    until(lambda: all(f'"pid": {pid},' in _text(records) for pid in owner.pids), 60)
    owner.process.send_signal(signal.SIGSTOP)
    for pid in owner.supervisors:
        os.kill(pid, signal.SIGKILL)
    owner.process.kill()
    owner.process.wait()
    # A signal takes its time on a busy machine, and whose supervisor lives is not swept.
    until(lambda: not any(map(_alive, owner.supervisors)), 60)
    assert all(map(_alive, owner.pids)), "nobody is left to end them"

    with LocalFleet(LocalCluster("c"), ray_python=fake_python):
        assert left(owner) == []
        assert all(map(_alive, neighbour.pids)), "a fleet whose owner lives is not touched"


def _text(records: list[Path]) -> str:
    return "".join(record.read_text() for record in records)


class TestSweep:
    def test_reused_process_ids_in_a_record_are_not_killed(self, base: Path) -> None:
        stranger = subprocess.Popen(["sleep", "60"], start_new_session=True)
        try:
            reused = Identity(stranger.pid, time.time() - 1000)
            root = _stale_fleet(base, ClusterRecord(reused, reused, [reused]))
            assert sweep_stale(base) == [root]
            assert stranger.poll() is None
            assert not root.exists()
        finally:
            stranger.kill()
            stranger.wait()

    def test_a_supervised_fleet_is_not_swept(self, base: Path) -> None:
        me = Identity.of(os.getpid())
        assert me is not None
        root = _stale_fleet(base, ClusterRecord(me))
        assert sweep_stale(base) == []
        assert root.exists()

    def test_other_folders_are_not_swept(self, base: Path) -> None:
        (base / f"{PREFIX}young").mkdir()
        full = base / f"{PREFIX}full"
        full.mkdir()
        (full / "precious").touch()
        os.utime(full, (0, 0))
        old = base / f"{PREFIX}old"
        old.mkdir()
        os.utime(old, (0, 0))
        (base / f"{PREFIX}link").symlink_to(full)

        assert sweep_stale(base) == [old]
        assert sorted(path.name for path in base.iterdir()) == [f"{PREFIX}full", f"{PREFIX}link", f"{PREFIX}young"]
        assert (full / "precious").exists()


def _stale_fleet(base: Path, cluster: ClusterRecord) -> Path:
    root = base / f"{PREFIX}stale"
    cluster_dir(root, 0).root.mkdir(parents=True)
    cluster.write(cluster_dir(root, 0).record)
    FleetRecord(root.name, Identity(os.getpid(), 0.0), 1, str(root / "clusters.yaml")).write(root)
    return root
