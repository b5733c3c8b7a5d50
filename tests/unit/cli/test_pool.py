"""`rmcs pool`: list, show, create, resize, relabel, delete and apply, over HTTP to a service on loopback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler.cli.commands.pool import bar
from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import Role
from ray_multicluster_scheduler.main import main
from tests.unit.client_api.control_plane import until
from tests.unit.service.http_service import HttpService

TRAIN = {"name": "train", "quota": {"CPU": 2, "memory": 2**30}, "cohort": "c"}


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpService]:
    with HttpService(tmp_path / "state", auth="token", submission_interval_s=0, pools=[TRAIN]) as one:
        monkeypatch.setenv("RMCS_ADDRESS", one.address)
        monkeypatch.setenv("RMCS_TOKEN", one.token)
        yield one


def lines(capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def pool(service: HttpService, name: str) -> dict[str, Any]:
    found: dict[str, Any] = service.get(f"/api/v1/pools/{name}")
    return found


def test_listed_and_shown(service: HttpService, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(3):
        service.submit(f"t{number}", pool="train")
    until(lambda: pool(service, "train")["running"] == 2)
    assert main(["pool", "list"]) == 0
    head, cpu, memory = lines(capsys)
    assert head[:5] == ["POOL", "COHORT", "CLUSTER", "RESOURCE", "QUOTA"]
    assert cpu == ["train", "c", "all", "CPU", "2", "2", "[##########]", "0", "0", "2", "1"]
    assert memory[:5] == ["all", "memory", "1", "GiB", "0"]
    assert main(["pool", "list", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == service.get("/api/v1/pools")["pools"]
    assert main(["pool", "show", "train"]) == 0
    assert ["source", "configured"] in lines(capsys)
    assert main(["pool", "show", "tran"]) == 102
    assert "did you mean 'train'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("quota", "used", "borrowed", "lent", "shown"),
    [
        (10, 0, 0, 0, "[          ]"),
        (10, 4, 0, 3, "[####---   ]"),
        (10, 12, 2, 0, "[##########]++"),
        (0, 0, 0, 0, "[          ]"),
        (0, 3, 3, 0, "[          ]+"),
        (1, 99, 98, 0, "[##########]++++++++++"),
    ],
)
def test_the_bar(quota: float, used: float, borrowed: float, lent: float, shown: str) -> None:
    assert bar({"quota": quota, "used": used, "reserved": 0, "borrowed": borrowed, "lent": lent}) == shown


def test_created_with_everything(service: HttpService, capsys: pytest.CaptureFixture[str]) -> None:
    words = "--quota CPU=8 --quota memory=64GiB --label team=nlp --cohort c --borrow-limit CPU=4 --lend-limit CPU=0"
    more = "--reclaim any --priority 2.5 --preemptible --owner ann --owner ben -o json"
    assert main(["pool", "create", "big", *words.split(), *more.split()]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made == pool(service, "big")
    assert (made["quota"], made["labels"]) == ({"CPU": 8, "memory": 64 * 2**30}, {"team": "nlp"})
    assert (made["borrow_limit"], made["lend_limit"], made["reclaim"]) == ({"CPU": 4}, {"CPU": 0}, "any")
    assert (made["priority"], made["preemptible"], made["owners"]) == (2.5, True, ["ann", "ben"])
    assert main(["pool", "create", "lab", "--cluster-quota", "mac:CPU=4", "--protected"]) == 0
    assert pool(service, "lab")["cluster_quota"] == {"mac": {"CPU": 4}}
    assert pool(service, "lab")["protected"]


def test_resized_and_relabelled(service: HttpService) -> None:
    assert main(["pool", "resize", "train", "--quota", "CPU=5", "--quota", "memory=none"]) == 0
    assert pool(service, "train")["quota"] == {"CPU": 5}
    assert pool(service, "train")["cohort"] == "c"
    assert main(["pool", "create", "lab", "--cluster-quota", "mac:CPU=4", "--cluster-quota", "mac:GPU=1"]) == 0
    assert main(["pool", "resize", "lab", "--cluster-quota", "mac:CPU=2"]) == 0
    assert pool(service, "lab")["cluster_quota"] == {"mac": {"CPU": 2, "GPU": 1}}
    assert main(["pool", "relabel", "train", "team=nlp", "stage=x"]) == 0
    assert main(["pool", "relabel", "train", "team=vision", "stage-", "none-"]) == 0
    assert pool(service, "train")["labels"] == {"team": "vision"}


def test_deleted_and_drained(service: HttpService, capsys: pytest.CaptureFixture[str]) -> None:
    service.submit("t", pool="train")
    assert main(["pool", "delete", "train"]) == 1
    assert "has 1 unfinished item" in capsys.readouterr().err
    assert main(["pool", "delete", "train", "--drain"]) == 0
    assert "train is deleted when its 1 unfinished item has ended" in capsys.readouterr().err
    assert main(["pool", "list"]) == 0
    assert "train (draining)" in capsys.readouterr().out


def test_a_file_is_applied(service: HttpService, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "pools.yaml"
    file.write_text("pools:\n- {name: a, quota: {CPU: 1}}\n")
    assert main(["pool", "apply", "-f", str(file)]) == 0
    assert ["created", "a"] in lines(capsys)
    assert main(["pool", "apply", "--file", str(file), "--prune", "-o", "json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["unchanged"], done["deleted"]) == (["a"], ["train"])
    file.write_text("clusters: []\n")
    assert main(["pool", "apply", "-f", str(file)]) == 2
    assert "has no list `pools:`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "output"),
    [
        ("create p --quota CPU", "'CPU' is not RESOURCE=AMOUNT."),
        ("create p --quota CPU=many", "quota['CPU'] is 'many'"),
        ("create p --cluster-quota CPU=4", "'CPU' is not CLUSTER:RESOURCE."),
        ("create p --cluster-quota moon:CPU=4", "there is no cluster 'moon'"),
        ("create p --label nlp", "'nlp' is not KEY=VALUE."),
        ("create p --reclaim all", "'all' is not one of"),
        ("create a/b", "Nothing here is called 'a/b'"),
        ("resize train", "Name amounts, such as --quota CPU=8"),
        ("relabel train nlp", "'nlp' is not KEY=VALUE or KEY-."),
    ],
)
def test_usage_errors(service: HttpService, capsys: pytest.CaptureFixture[str], words: str, output: str) -> None:
    assert main(["pool", *words.split()]) in (2, 102)
    shown = capsys.readouterr().err
    assert output in shown
    assert "Traceback" not in shown


def test_changes_are_for_admins(
    service: HttpService, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RMCS_TOKEN", service.token_for("otto", Role.OPERATOR))
    assert main(["pool", "list"]) == 0
    assert main(["pool", "create", "p"]) == 1
    assert "More: rmcs explain NOT_ALLOWED" in capsys.readouterr().err
