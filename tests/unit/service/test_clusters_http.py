"""One cluster over HTTP: known, checked, drained; and clusters that come, change and go while the service runs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.redaction import mask_config
from ray_multicluster_scheduler.control_plane.admin_api.access.config_redaction import (
    cluster_shown,
    settings_shown,
)
from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import Role
from ray_multicluster_scheduler.control_plane.config import ClusterConfig, Settings, load_config
from ray_multicluster_scheduler.control_plane.config.settings import ServiceTls
from ray_multicluster_scheduler.scheduler.lifecycle.events import SnapshotFailed
from tests.unit.client_api.control_plane import CLOSED_PORT, until
from tests.unit.service.http_service import HttpService
from tests.unit.service.service_plane import CPUS, running
from tests.unit.service.test_audit import actions

pytestmark = pytest.mark.usefixtures("leak_check")
MAC = {"name": "mac", "dashboard": CLOSED_PORT}
LINUX = {"name": "linux", "dashboard": "http://127.0.0.1:10", "tags": ["x86_64"]}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[HttpService]:
    with HttpService(tmp_path / "state", submission_interval_s=0) as service:
        yield service


# ---- one cluster


def test_a_cluster_shows_all_its_known_facts(service: HttpService) -> None:
    unknown = service.get("/api/v1/clusters/mac?refresh=false")
    assert (unknown["state"], unknown["snapshot_at"]) == ("CLUSTER_UNKNOWN", None)
    assert unknown["troubles"][0]["concerns"] == "everything"
    service.submit("t")
    running(service.item("t"))
    known = service.get("/api/v1/clusters/mac")
    assert (known["state"], known["in_flight"], known["total"]["CPU"], known["troubles"]) == ("UP", 1, CPUS, [])
    assert known["breaker"] == {"state": "CLOSED", "failures_in_a_row": 0, "half_open_at": None}
    assert known["config"]["dashboard"] == CLOSED_PORT
    assert service.ask("GET", "/api/v1/clusters/mars")[0] == 404


def test_check_asks_now(service: HttpService) -> None:
    answer = service.post("/api/v1/clusters/mac/check")
    assert (answer["answered"], answer["cluster"]["state"]) == (True, "UP")
    assert service.ask("POST", "/api/v1/clusters/mars/check")[0] == 404


def fail(service: HttpService) -> None:
    """Its breaker opens: contact with it was lost so often in a row."""
    runtime = service.plane.runtime
    breaker = runtime.machine.registry.state("mac").breaker
    for _ in range(runtime.settings.breaker_failures):
        runtime.call_and_wait(lambda: breaker.record_failure(runtime.clock.now()))
    until(lambda: service.get("/api/v1/clusters/mac?refresh=false")["breaker"]["state"] == "OPEN")


def test_check_asks_whatever_the_state_of_the_breaker_and_closes_it(service: HttpService) -> None:
    fail(service)
    seen = service.get("/api/v1/clusters/mac")
    assert seen["breaker"]["state"] == "OPEN", "a reader does not steer"
    answer = service.post("/api/v1/clusters/mac/check")
    assert (answer["answered"], answer["cluster"]["breaker"]["state"]) == (True, "CLOSED")
    assert answer["cluster"]["troubles"] == []


def test_only_an_operator_closes_the_breaker_and_that_is_recorded(tmp_path: Path) -> None:
    with HttpService(tmp_path / "state", auth="token") as service:
        fail(service)
        for role, state in ((Role.VIEWER, "OPEN"), (Role.SUBMITTER, "OPEN"), (Role.OPERATOR, "CLOSED")):
            status, answer = service.ask("POST", "/api/v1/clusters/mac/check", {}, token=service.token_for("ann", role))
            assert (status, answer["answered"], answer["cluster"]["breaker"]["state"]) == (200, True, state), role
        service.post("/api/v1/clusters/mac/check")
        assert [one[:3] for one in actions(service)] == [("close breaker", "mac", "ann")]


def test_why_a_queue_is_paused_is_in_the_row_of_its_cluster(service: HttpService) -> None:
    service.post("/api/v1/queue/cluster/mac/pause", {"reason": "new disks"})
    (row,) = service.get("/api/v1/clusters?refresh=true")["clusters"]
    assert (row["state"], row["paused"]) == ("UP", "new disks")
    assert row["sentence"] == "", "it was requested: it is no problem"
    service.post("/api/v1/queue/cluster/mac/resume")
    (row,) = service.get("/api/v1/clusters?refresh=true")["clusters"]
    assert (row["paused"], row["sentence"]) == (None, "")


def test_drain_waits_until_it_is_empty(service: HttpService) -> None:
    service.submit("t")
    running(service.item("t"))
    answer = service.post("/api/v1/clusters/mac/drain", {"timeout": 0.05})
    assert answer == {"drained": False, "items": ["t"]}
    timer = threading.Timer(0.2, lambda: service.plane.finish(service.item("t")))
    timer.start()
    assert service.post("/api/v1/clusters/mac/drain", {"timeout": 20}) == {"drained": True, "items": []}
    timer.join()
    assert service.get("/api/v1/clusters/mac")["cordoned"] is True
    assert service.ask("POST", "/api/v1/clusters/mac/drain", {"timeout": -1})[0] == 422


def test_a_drain_ends_with_an_error_when_the_cluster_is_uncordoned(service: HttpService) -> None:
    service.submit("t")
    running(service.item("t"))

    def open_it() -> None:
        until(lambda: service.get("/api/v1/clusters/mac")["cordoned"])
        service.post("/api/v1/clusters/mac/uncordon")

    other = threading.Thread(target=open_it)
    other.start()
    status, answer = service.ask("POST", "/api/v1/clusters/mac/drain", {"timeout": 20})
    other.join()
    assert (status, answer["error"]) == (409, "SchedulerError")


# ---- other clusters


def test_clusters_come_change_and_go(service: HttpService) -> None:
    none: dict[str, Any] = {"not_applied": [], "not_empty": []}
    answer = service.post("/api/v1/clusters/apply", {"clusters": [{**MAC, "weight": 2}, LINUX]})
    assert answer == {"added": ["linux"], "changed": ["mac"], "removed": [], "unchanged": [], **none}
    rows = {row["name"]: row for row in service.get("/api/v1/clusters")["clusters"]}
    assert (rows["mac"]["weight"], rows["linux"]["tags"]) == (2, ["x86_64"])
    assert service.get("/api/v1/fleet")["clusters"] == ["mac", "linux"]
    service.submit("t", require_tags=["x86_64"])
    assert running(service.item("t")).cluster == "linux"
    service.plane.finish(service.item("t"))
    answer = service.post("/api/v1/clusters/apply", {"text": f"clusters:\n- {json.dumps(MAC)}\n"})
    assert (answer["changed"], answer["removed"]) == (["mac"], ["linux"])
    assert service.ask("GET", "/api/v1/clusters/linux")[0] == 404
    assert service.post("/api/v1/clusters/apply", {"clusters": [MAC]})["unchanged"] == ["mac"]


def test_what_is_there_keeps_its_cluster(service: HttpService) -> None:
    service.submit("t")
    running(service.item("t"))
    for clusters in ([LINUX], [{**MAC, "dashboard": "http://127.0.0.1:10"}]):
        status, answer = service.ask("POST", "/api/v1/clusters/apply", {"clusters": clusters})
        assert (status, "mac: t" in answer["message"], "drain mac" in answer["next_step"]) == (409, True, True)
    now = service.get("/api/v1/clusters/mac")
    assert (now["cordoned"], now["dashboard"]) == (False, CLOSED_PORT)
    assert service.post("/api/v1/clusters/apply", {"clusters": [{**MAC, "tags": ["new"]}]})["changed"] == ["mac"]
    service.plane.finish(service.item("t"))
    service.post("/api/v1/clusters/apply", {"clusters": [{**MAC, "dashboard": "http://127.0.0.1:10"}]})
    moved = service.get("/api/v1/clusters/mac")
    assert (moved["cordoned"], moved["dashboard"]) == (False, "http://127.0.0.1:10")


REACHED = {
    "dashboard": "http://127.0.0.1:10",
    "head_address": "127.0.0.1:11",
    "auth_token": "another",
    "auth_token_path": "/tmp/another",
    "tls": {"verify": False},
    "carrier": "dial_in",
    "python": "python3.12",
    "agent_port": 7100,
    "agent_address": "127.0.0.1:7100",
    "connector_python": "python3.12",
}
OF_PLACEMENT = {
    "tags": ["new"],
    "weight": 2,
    "prefer": True,
    "home_dir": "/home/u",
    "runtime_env": {"env_vars": {"A": "1"}},
    "max_running_jobs": 3,
    "max_in_flight": 4,
    "autoscaling": True,
    "max_node": {"CPU": 1},
}


def test_only_a_change_of_connection_fields_ends_an_idle_link(
    service: HttpService, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []

    async def close_link(name: str, sentence: str) -> None:
        ended.append(name)

    monkeypatch.setattr(service.plane.runtime.links, "close_link", close_link)
    assert {"name", *REACHED, *OF_PLACEMENT} == set(ClusterConfig.model_fields)
    for key, value in {**REACHED, **OF_PLACEMENT}.items():
        assert service.post("/api/v1/clusters/apply", {"clusters": [{**MAC, key: value}]})["changed"] == ["mac"]
        assert ended == (["mac"] if key in REACHED else []), key
        service.post("/api/v1/clusters/apply", {"clusters": [MAC]})
        ended.clear()


def test_a_dry_run_changes_nothing(service: HttpService, tmp_path: Path) -> None:
    path = "/api/v1/clusters/apply?dry_run=true"
    service.submit("t")
    running(service.item("t"))
    wanted = {"clusters": [{**LINUX, "name": "sun"}], "settings": {"max_queue": 5}}
    answer = service.post(path, wanted)
    assert (answer["added"], answer["removed"], answer["not_empty"]) == (["sun"], ["mac"], ["mac"])
    assert "max_queue" in answer["not_applied"]
    moved = service.post(path, {"clusters": [{**MAC, "dashboard": "http://127.0.0.1:10"}]})
    assert (moved["changed"], moved["not_empty"]) == (["mac"], ["mac"])
    same = service.post(path, {"clusters": [{**MAC, "weight": 2}]})
    assert (same["changed"], same["not_empty"]) == (["mac"], [])
    file = tmp_path / "clusters.yaml"
    file.write_text(json.dumps({"clusters": [MAC, LINUX]}))
    runtime = service.plane.runtime
    runtime.config = runtime.config.model_copy(update={"source": str(file)})
    assert service.post(path, {})["added"] == ["linux"]
    now = service.get("/api/v1/clusters/mac")
    assert (service.get("/api/v1/fleet")["clusters"], now["cordoned"], now["weight"]) == (["mac"], False, 1)


def test_one_that_is_closed_stays_closed(service: HttpService) -> None:
    service.post("/api/v1/clusters/mac/cordon")
    service.post("/api/v1/clusters/apply", {"clusters": [{**MAC, "dashboard": "http://127.0.0.1:10"}]})
    assert service.get("/api/v1/clusters/mac")["cordoned"] is True


@pytest.mark.parametrize(
    "output",
    [
        {"clusters": []},
        {"clusters": 5},
        {"clusters": [5]},
        {"clusters": [{"name": "x"}]},
        {"clusters": [MAC, MAC]},
        {"clusters": [{**MAC, "colour": "red"}]},
        {"clusters": [{**MAC, "auth_token": "**********"}]},
        {"clusters": [MAC], "settings": 5},
        {"clusters": [MAC], "colour": "red"},
        {"text": "clusters: ["},
        {"text": "{}"},
        {"text": 5},
        {"text": "clusters: []", "clusters": []},
        {"colour": "red"},
    ],
)
def test_what_is_no_configuration_changes_nothing(service: HttpService, output: dict[str, Any]) -> None:
    status, answer = service.ask("POST", "/api/v1/clusters/apply", output)
    assert (status, answer["code"]) == (422, "CONFIGURATION")
    assert service.get("/api/v1/fleet")["clusters"] == ["mac"]


def test_settings_are_only_compared(service: HttpService) -> None:
    answer = service.post("/api/v1/clusters/apply", {"clusters": [MAC], "settings": {"max_queue": 5}})
    assert "max_queue" in answer["not_applied"]
    assert service.get("/api/v1/settings")["settings"]["max_queue"] == 100_000


def test_the_file_is_read_again(service: HttpService, tmp_path: Path) -> None:
    status, answer = service.ask("POST", "/api/v1/clusters/apply", {})
    assert (status, "an argument" in answer["message"]) == (422, True)
    file = tmp_path / "clusters.yaml"
    file.write_text(json.dumps({"clusters": [MAC]}))
    runtime = service.plane.runtime
    runtime.config = load_config(file).model_copy(update={"settings": runtime.config.settings})
    file.write_text(json.dumps({"clusters": [MAC, LINUX]}))
    assert service.post("/api/v1/clusters/apply", {})["added"] == ["linux"]
    file.write_text(json.dumps({"clusters": [{**MAC, "weight": 3}, LINUX]}))
    runtime.call_soon(service.app.state.fleet_changes.reload_soon)  # as SIGHUP does
    until(lambda: runtime.machine.registry.get("mac").weight == 3)
    file.write_text("nonsense")
    runtime.call_soon(service.app.state.fleet_changes.reload_soon)
    assert service.ask("POST", "/api/v1/clusters/apply", {})[0] == 422
    assert runtime.config.names == ("mac", "linux")


# ---- settings and secrets


def test_settings_that_are_in_force(service: HttpService) -> None:
    output = service.get("/api/v1/settings")
    assert output["settings"]["submission_interval_s"] == 0
    assert output["settings"]["lease_s"] == 45
    assert (output["source"], output["clusters"][0]["name"]) == ("an argument", "mac")


def test_secrets_are_not_shown(service: HttpService) -> None:
    secret = {**MAC, "auth_token": "s3cret", "runtime_env": {"env_vars": {"A": "s3cret"}, "pip": ["x"]}}
    service.post("/api/v1/clusters/apply", {"clusters": [secret]})
    for path in ("settings", "clusters/mac", "fleet", "clusters"):
        answer = service.get(f"/api/v1/{path}")
        assert "s3cret" not in json.dumps(answer), path
    shown = service.get("/api/v1/clusters/mac")["config"]
    env = shown["runtime_env"]
    assert (shown["auth"], list(env["env_vars"]), env["pip"]) == ("token", ["A"], ["x"])


def test_one_list_of_words_says_what_is_a_secret() -> None:
    shown = mask_config({"db-pass": "x", "author": "ann", "tokenizer": "bpe", "url": "https://ghp_x@h/x"})
    assert shown == {"db-pass": "•••", "author": "ann", "tokenizer": "bpe", "url": "https://•••@h/x"}
    tls = ServiceTls(cert="a.pem", key="b.pem")
    settings = settings_shown(Settings(service_tls=tls), None)
    assert (settings["auth"], settings["service_tls"]) == ("token", {"cert": "a.pem", "key": "b.pem"})


def test_what_looks_like_a_secret_is_masked() -> None:
    output = {
        "webhook_secret": "x",
        "plain": "y",
        "deep": [{"password": "z"}],
        "url": "https://me:pw@h/x",
        "auth": None,
    }
    shown = mask_config(output)
    assert (shown["webhook_secret"], shown["deep"][0]["password"]) == ("•••", "•••")
    assert (shown["plain"], shown["url"], shown["auth"]) == ("y", "https://•••@h/x", None)
    config = ClusterConfig(name="a", dashboard=CLOSED_PORT, auth_token_path="/etc/hidden")
    assert cluster_shown(config)["auth"] == "file"
    assert "hidden" not in json.dumps(cluster_shown(config))
    with pytest.raises(ConfigurationError):
        config.resolve_token()


@pytest.mark.parametrize("verb", ["check", "drain", "cordon", "uncordon", "declare-dead"])
def test_a_cluster_that_is_not_there_is_not_found(service: HttpService, verb: str) -> None:
    status, answer = service.ask("POST", f"/api/v1/clusters/mars/{verb}", {})
    assert (status, answer["error"], answer["code"]) == (404, "ConfigurationError", "CONFIGURATION")
    assert "mars" in answer["message"]
    assert service.ask("GET", "/api/v1/clusters/mars/drained")[0] == 404
    assert service.ask("POST", "/api/v1/queue/cluster/mars/pause", {})[0] == 404


def test_the_next_query_shows_that_one_is_back(tmp_path: Path) -> None:
    """One that was declared dead takes work again when it answers, and it has to be asked."""
    with HttpService(tmp_path / "state", health_check_interval_s=0.05) as service:
        until(lambda: service.get("/api/v1/clusters")["clusters"][0]["state"] == "UP")
        service.post("/api/v1/clusters/mac/declare-dead", {"force": True})
        until(lambda: service.get("/api/v1/clusters")["clusters"][0]["state"] == "UP")
        assert service.get("/api/v1/clusters/mac?refresh=false")["troubles"] == []


def test_facts_of_another_entry_are_not_shown_for_this_one(service: HttpService) -> None:
    """A token that was fixed, say: what is applied is asked, without a request."""
    service.plane.post(SnapshotFailed("mac", "WRONG_TOKEN", "the token was refused", permanent=True))
    known = "/api/v1/clusters/mac?refresh=false"
    until(lambda: service.get(known)["state"] == "CLUSTER_MISCONFIGURED")
    service.post("/api/v1/clusters/apply", {"clusters": [{**MAC, "auth_token": "another"}]})
    until(lambda: service.get(known)["state"] == "UP")
