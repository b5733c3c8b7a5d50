"""A local fleet of real Ray clusters: separate, on loopback only, and removed completely."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from ray_multicluster_scheduler.local_fleet import LocalCluster, LocalFleet
from ray_multicluster_scheduler.local_fleet.processes import in_session
from ray_multicluster_scheduler.local_fleet.ray_head import fetch, listening

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

SHM = Path("/dev/shm")
HOLD = """
import json, sys, time
from ray_multicluster_scheduler.local_fleet import LocalCluster, LocalFleet
with LocalFleet(LocalCluster("doomed", num_cpus=1)) as fleet:
    sys.stdout.write(json.dumps({"dashboard": fleet.addresses("doomed").dashboard, "token": fleet.token("doomed"),
                                 "root": str(fleet.folder("doomed").root.parent),
                                 "supervisor": fleet.supervisor("doomed")}) + "\\n")
    sys.stdout.flush()
    time.sleep(300)
"""


@pytest.fixture(scope="module")
def fleet() -> Iterator[LocalFleet]:
    with LocalFleet(
        LocalCluster("linux", num_cpus=1, tags=["linux", "x86_64"]),
        LocalCluster("mac", num_cpus=1, tags=["macos", "arm64"], resources={"special": 2}, labels={"arch": "arm"}),
    ) as fleet:
        yield fleet


def alive(pids: list[int]) -> list[int]:
    found = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
    return found


def shared_memory_files() -> set[Path]:
    """Of Ray's kinds; a cluster that starts elsewhere on this machine makes one that lives for a moment."""
    return {path for kind in ("plasma*", "psm_*", "sem.*") for path in SHM.glob(kind)}


def eventually(condition: Callable[[], bool], within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)
    return condition()


def ask(fleet: LocalFleet, name: str, path: str, token: str | None = None) -> Any:
    return json.loads(fetch(fleet.addresses(name).dashboard + path, token or fleet.token(name), timeout_s=60))


def run_job(dashboard: str, token: str, entrypoint: str) -> str:
    request = urllib.request.Request(
        f"{dashboard}/api/jobs/",
        data=json.dumps({"entrypoint": entrypoint}).encode(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return str(json.load(answer)["submission_id"])


def wait_for_file(path: Path, within_s: float = 60.0) -> str:
    assert eventually(lambda: path.exists() and bool(path.read_text()), within_s), f"{path} was never written"
    return path.read_text()


def test_two_clusters_match_their_descriptions(fleet: LocalFleet) -> None:
    entries = {entry["name"]: entry for entry in yaml.safe_load(fleet.config_path.read_text())["clusters"]}
    for name in ("linux", "mac"):
        assert entries[name]["dashboard"] == fleet.addresses(name).dashboard
        assert entries[name]["head_address"] == fleet.addresses(name).head_address
        assert Path(entries[name]["auth_token_path"]).read_text() == fleet.token(name)
        assert listening(int(fleet.addresses(name).head_address.rpartition(":")[2]))
    (node,) = ask(fleet, "mac", "/api/v0/nodes")["data"]["result"]["result"]
    assert node["resources_total"]["CPU"] == 1
    assert node["resources_total"]["special"] == 2
    assert node["labels"]["arch"] == "arm"
    assert ask(fleet, "linux", "/api/version")["session_name"] != ask(fleet, "mac", "/api/version")["session_name"]


def test_a_token_opens_its_own_cluster_only(fleet: LocalFleet) -> None:
    assert fleet.token("linux") != fleet.token("mac")
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask(fleet, "linux", "/api/version", fleet.token("mac"))
    assert caught.value.code == 403
    caught.value.close()


def test_all_listeners_are_on_loopback(fleet: LocalFleet) -> None:
    listeners = [
        (pid, link.laddr)
        for name in ("linux", "mac")
        for pid in [*fleet.processes(name), fleet.supervisor(name)]
        for link in psutil.Process(pid).net_connections("inet")
        if link.status == psutil.CONN_LISTEN
    ]
    assert len(listeners) > 10
    assert [each for each in listeners if each[1].ip not in ("127.0.0.1", "::ffff:127.0.0.1", "::1")] == []


def test_a_power_cut_ends_a_running_job_and_spares_the_other_cluster(fleet: LocalFleet, tmp_path: Path) -> None:
    """The job's process runs in a session of its own, as those of all Ray jobs do, and has the cluster's Python."""
    note = tmp_path / "note"
    code = (
        "import json,os,sys,time; from importlib.util import find_spec; "
        f"open({str(note)!r},'w').write(json.dumps([os.getpid(), os.environ['HOME'], "
        "*[find_spec(m) is not None for m in ('ray','ray_multicluster_scheduler','cloudpickle')]])); time.sleep(300)"
    )
    run_job(fleet.addresses("mac").dashboard, fleet.token("mac"), f'python -c "{code}"')
    pid, home, has_ray, has_ours, has_cloudpickle = json.loads(wait_for_file(note))
    assert home == str(fleet.home("mac"))
    assert (has_ray, has_ours, has_cloudpickle) == (True, False, False)
    pids, neighbours = fleet.processes("mac"), fleet.processes("linux")
    assert pid in pids
    assert len({os.getsid(each) for each in pids}) > 1
    addresses, session = fleet.addresses("mac"), ask(fleet, "mac", "/api/version")["session_name"]

    fleet.kill("mac")

    assert alive(pids) == []
    with pytest.raises(urllib.error.URLError, match="refused"):
        ask(fleet, "mac", "/api/version")
    assert alive(neighbours) == neighbours
    assert ask(fleet, "linux", "/api/version")

    fleet.start("mac")

    assert fleet.addresses("mac") == addresses
    assert ask(fleet, "mac", "/api/version")["session_name"] != session
    assert ask(fleet, "mac", "/api/jobs/") == []


def test_pause_and_cut_are_distinguishable_and_reversible(fleet: LocalFleet) -> None:
    fleet.pause("mac")
    with pytest.raises(OSError, match="timed out"):
        fetch(fleet.addresses("mac").dashboard + "/api/version", fleet.token("mac"), timeout_s=1)
    fleet.resume("mac")
    assert ask(fleet, "mac", "/api/version")

    fleet.cut("mac")
    with pytest.raises(urllib.error.URLError, match="refused"):
        ask(fleet, "mac", "/api/version")
    assert fetch(fleet.direct_dashboard("mac") + "/api/version", fleet.token("mac"))
    fleet.restore_network("mac")
    assert ask(fleet, "mac", "/api/version")


@pytest.mark.slow  # the demo shows the same in every run
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["kill -9", "Ctrl+C"])
def test_a_fleet_is_removed_after_its_owner_was_killed(how: signal.Signals, fleet: LocalFleet, tmp_path: Path) -> None:
    """While a job runs. Checked by process tree, session and port; the other fleet continues."""
    others = fleet.processes("linux")
    shared_before = shared_memory_files()
    owner = subprocess.Popen(
        [sys.executable, "-c", HOLD],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        assert owner.stdout is not None
        report = json.loads(owner.stdout.readline())
        note = tmp_path / "note"
        run_job(report["dashboard"], report["token"], f"sh -c 'echo $$ > {note}; sleep 300'")
        wait_for_file(note)
        supervisor = psutil.Process(report["supervisor"])
        everything = [supervisor, *supervisor.children(recursive=True)]
        sessions = {os.getsid(process.pid) for process in everything}
        ports = {link.laddr.port for p in everything for link in p.net_connections("inet") if link.status == "LISTEN"}
        assert len(sessions) > 2
        assert len(ports) > 10

        os.killpg(owner.pid, how)
        owner.wait(timeout=30)

        assert eventually(lambda: alive([process.pid for process in everything]) == [], 60)
        assert eventually(lambda: not Path(report["root"]).exists(), 60)
        assert [p for session in sessions for p in in_session(session) if alive([p.pid])] == []
        assert [port for port in ports if listening(port)] == []
        assert eventually(lambda: shared_memory_files() <= shared_before, 60)
        assert alive(others) == others
    finally:
        owner.kill()
        owner.communicate()


def test_stop_removes_all_processes_and_files(fleet: LocalFleet) -> None:
    """Runs last, since it ends the fleet of this module."""
    pids = [pid for name in ("linux", "mac") for pid in [*fleet.processes(name), fleet.supervisor(name)]]
    sessions = {os.getsid(pid) for pid in pids}
    root = fleet.folder("linux").root.parent
    ports = {
        link.laddr.port
        for pid in pids
        for link in psutil.Process(pid).net_connections("inet")
        if link.status == psutil.CONN_LISTEN
    }
    begin = time.monotonic()

    fleet.stop()

    assert time.monotonic() - begin < 45
    assert alive(pids) == []
    assert [p for session in sessions for p in in_session(session) if alive([p.pid])] == []
    assert [port for port in ports if listening(port)] == []
    assert not root.exists()
    assert eventually(lambda: not any(path.name.startswith("plasma") for path in shared_memory_files()), 60)
