"""`rmcs doctor` asks the service that runs, and knows one that was killed from one that never was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler.cli.doctor import service_checks
from ray_multicluster_scheduler.control_plane.store import StorageUsage
from ray_multicluster_scheduler.control_plane.store.state_folder import StateFolder
from ray_multicluster_scheduler.scheduler.lifecycle import events
from tests.unit.cli.conftest import Rmcs
from tests.unit.service.http_service import HttpService

ROOT = Path(__file__).resolve().parents[3]


pytestmark = pytest.mark.usefixtures("home")


def findings(rmcs: Rmcs, *words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(rmcs("doctor", "-o", "json", *words).out)
    return found


def problems_of(rmcs: Rmcs) -> list[tuple[str, str, str]]:
    return [(one["about"], one["verdict"], one["code"]) for one in findings(rmcs) if one["verdict"] != "ok"]


def test_all_is_well_without_a_configuration_of_ones_own(service: HttpService, rmcs: Rmcs) -> None:
    service.submit("one")
    done = rmcs("doctor")
    assert done.code == 0, done.out
    for words in (
        "✓ service: it runs version",
        "✓ service: it can accept work",
        "✓ service: it reaches mac",
        "✓ configuration: none is here, and none is needed",
        "GB are free for the store of the service",
        "✓ store: 99 of 100 writes were durable within",
    ):
        assert words in done.out


def unreachable(service: HttpService, why: str) -> None:
    """From now on, whichever cluster is asked."""

    def refresh(cluster: str, *, requested: bool) -> Any:
        failed = events.SnapshotFailed(cluster, "CLUSTER_UNREACHABLE", why)
        service.plane.post(failed)
        answer = service.plane.runtime._loop.create_future()
        answer.set_result(failed)
        return answer

    service.plane.refresh = refresh  # type: ignore[method-assign]  # in place of the executor


def test_a_cluster_that_the_service_cannot_reach(service: HttpService, rmcs: Rmcs) -> None:
    unreachable(service, "mac: the switch\x1b[2J is off. What to do: press it")
    assert problems_of(rmcs) == [("mac", "wrong", "CLUSTER_UNREACHABLE")]
    done = rmcs("doctor")
    assert done.code == 100
    assert "✗ mac: the service reports: " in done.out
    assert "mac: the switch\\x1b[2J is off.\n    What to do: press it; `rmcs clusters check mac` lets" in done.out


def test_a_cluster_that_was_closed_and_its_queue(service: HttpService, rmcs: Rmcs) -> None:
    service.post("/api/v1/clusters/mac/cordon")
    service.post("/api/v1/queue/cluster/mac/pause", {"reason": "until Monday"})
    assert problems_of(rmcs) == [("mac", "warning", "CORDONED"), ("mac", "warning", "QUEUE_PAUSED")]
    assert "its queue is paused: until Monday" in rmcs("doctor").out


def test_a_paused_queue_is_only_a_warning(service: HttpService, rmcs: Rmcs) -> None:
    service.post("/api/v1/queue/cluster/mac/pause", {"reason": "new disks"})
    unreachable(service, "the switch is off")
    out = rmcs("doctor").out
    (problem,) = [line for line in out.splitlines() if line.startswith("✗ mac: ")]
    assert "paused" not in problem
    assert out.count("its queue is paused: new disks") == 1


def test_a_store_that_is_slow(service: HttpService, rmcs: Rmcs) -> None:
    for _ in range(100):
        service.plane.runtime.metrics.commit.add(0.7)
    (slow,) = [one for one in findings(rmcs) if one["verdict"] != "ok"]
    assert (slow["about"], slow["verdict"]) == ("store", "warning")
    assert "more than 0.5 s" in slow["says"]


@pytest.mark.parametrize(
    ("free", "kept", "wanted"),
    [
        (2 * 10**9, 0, [("store", "warning", "STORE_FULL")]),
        (10**6, 0, [("store", "wrong", "STORE_FULL")]),
        (10**12, 99 * 2**30, [("store", "warning", "STORE_FULL")]),
        (10**12, 10, []),
    ],
)
def test_a_store_with_little_room(
    free: int,
    kept: int,
    wanted: list[tuple[str, str, str]],
    service: HttpService,
    rmcs: Rmcs,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service.plane.store, "usage", lambda: StorageUsage(free, kept))
    assert problems_of(rmcs) == wanted


def test_another_version(service: HttpService, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_checks, "__version__", "99.1")
    (odd,) = [one for one in findings(rmcs) if one["verdict"] != "ok"]
    assert "and this is 99.1" in odd["says"]


def test_one_that_takes_nothing(service: HttpService, rmcs: Rmcs) -> None:
    service.plane.runtime.refuse("is being stopped")
    assert problems_of(rmcs) == [("service", "wrong", "SERVICE_UNAVAILABLE")]
    assert "is being stopped." in rmcs("doctor").out


def test_one_that_answers_without_a_token_only(
    service: HttpService, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RMCS_TOKEN")
    assert problems_of(rmcs)[0] == ("service", "wrong", "NOT_ALLOWED")


class TestNobodyToAsk:
    @pytest.fixture(autouse=True)
    def _no_address(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("RMCS_ADDRESS", raising=False)

    def of_service(self, rmcs: Rmcs) -> tuple[str, str, str]:
        (one,) = [one for one in findings(rmcs) if one["about"] == "service"]
        return one["verdict"], one["says"], one["fix"]

    def test_none_ever_ran(self, rmcs: Rmcs) -> None:
        assert self.of_service(rmcs)[:2] == ("ok", "none runs here: programs use a scheduler of their own")

    def test_one_was_stopped_in_order(self, rmcs: Rmcs, home: Path) -> None:
        with StateFolder(home) as folder:
            folder.announce(address="http://127.0.0.1:9")
        assert self.of_service(rmcs)[0] == "ok"

    def test_one_is_just_starting(self, rmcs: Rmcs, home: Path) -> None:
        with StateFolder(home):
            verdict, says, _ = self.of_service(rmcs)
            asked = rmcs("status")
        assert (verdict, says.endswith("is just starting")) == ("warning", True)
        assert asked.code == 2
        assert f"No service answers here yet: one is starting (process {os.getpid()}).\nWhat to do: ask" in asked.err

    def test_one_was_killed(self, rmcs: Rmcs, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        pid = killed_service(home, "http://127.0.0.1:9")
        os.utime(home / "server.json", (1794700800, 1794700800))
        verdict, says, fix = self.of_service(rmcs)
        assert verdict == "wrong"
        assert f"a service (process {pid}) ran here at least until 2026-11-15T00:00:00Z" in says
        assert says.endswith("and did not shut down properly")
        assert fix.startswith("start it again with `rmcs up`")
        asked = rmcs("status")
        assert (asked.code, asked.out) == (2, "")
        assert f"No service runs here: a service (process {pid}) ran here at least until" in asked.err
        assert "What to do: start it again with `rmcs up`" in asked.err
        monkeypatch.setenv("RMCS_ADDRESS", "http://127.0.0.1:9")
        _, says, fix = self.of_service(rmcs)
        assert "does not answer: Connection refused; a service" in says
        assert fix.startswith("start it again")
        StateFolder(home).release()
        assert "did not shut down properly" not in rmcs("doctor").out


def killed_service(home: Path, address: str) -> int:
    """The folder as a process leaves it that is killed while it has it."""
    program = (
        "import sys, time; from pathlib import Path; "
        "from ray_multicluster_scheduler.control_plane.store.state_folder import StateFolder; "
        "folder = StateFolder(Path(sys.argv[1])); folder.announce(address=sys.argv[2]); print('has it', flush=True); "
        "time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(home), address], stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None
    assert process.stdout.readline() == b"has it\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    return process.pid
