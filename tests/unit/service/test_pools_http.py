"""/api/v1/pools: who runs in which pool, what its quota lets start, and what administrators change."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import Role
from ray_multicluster_scheduler.control_plane.admin_api.schemas.pools import PoolValues
from ray_multicluster_scheduler.control_plane.config.pool_config import PoolConfig
from ray_multicluster_scheduler.control_plane.runtime.pools import check_stored_pools
from ray_multicluster_scheduler.control_plane.store import OperationRecord
from tests.unit.client_api.control_plane import until
from tests.unit.service.http_service import HttpService, body
from tests.unit.service.service_plane import a_task, running

pytestmark = pytest.mark.usefixtures("leak_check")
POOLS = "/api/v1/pools"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[HttpService]:
    pools = [{"name": "train", "quota": {"CPU": 2}, "labels": {"team": "nlp"}, "priority": 3}]
    with HttpService(tmp_path / "state", auth="token", submission_interval_s=0, pools=pools) as service:
        yield service


def put(service: HttpService, name: str, **values: Any) -> dict[str, Any]:
    status, row = service.ask("PUT", f"{POOLS}/{name}", values)
    assert status == 200, row
    found: dict[str, Any] = row
    return found


def submit(service: HttpService, *names: str, **values: Any) -> None:
    for name in names:
        service.submit(name, **values)


def states(service: HttpService, *names: str) -> list[str]:
    return [str(service.get(f"/api/v1/items/{name}")["state"]) for name in names]


def counts(service: HttpService, name: str) -> tuple[int, int]:
    row = service.get(f"{POOLS}/{name}")
    return row["running"], row["waiting"]


def use(service: HttpService, name: str) -> dict[str, float]:
    (row,) = service.get(f"{POOLS}/{name}")["use"]
    return {key: row[key] for key in ("quota", "used", "borrowed", "lent", "available")}


def end(service: HttpService, name: str) -> None:
    service.plane.finish(running(service.item(name)))
    until(lambda: states(service, name) == ["SUCCEEDED"])


def code(service: HttpService, name: str) -> str:
    return str(service.get(f"/api/v1/items/{name}/explain")["code"])


def test_the_schema_has_the_keys_of_the_configuration() -> None:
    assert set(PoolValues.model_fields) == set(PoolConfig.model_fields)


def test_an_item_gets_the_pool_that_it_names_or_matches(service: HttpService) -> None:
    put(service, "other")
    submit(service, "named", pool="other", labels={"team": "nlp"})
    submit(service, "matched", labels={"team": "nlp", "stage": "x"})
    submit(service, "none")
    pools = [service.get(f"/api/v1/items/{one}/explain").get("pool") for one in ("named", "matched", "none")]
    assert pools == ["other", "train", None]
    assert [service.get(f"/api/v1/items/{one}").get("pool") for one in ("named", "matched")] == ["other", "train"]
    until(lambda: counts(service, "train") == (1, 0))
    end(service, "matched")
    service.restart()
    for path in ("/api/v1/items/matched", "/api/v1/items/matched/explain"):
        assert service.get(path)["pool"] == "train", "also of an item that is only in the store"
    rows = {row["id"]: row.get("pool") for row in service.get("/api/v1/items")["items"]}
    assert rows == {"named": "other", "matched": "train", "none": None}
    assert [row["name"] for row in service.get(POOLS)["pools"]] == ["other", "train"]


def test_a_pool_that_is_not_there(service: HttpService) -> None:
    submit(service, "t", pool="tran")
    until(lambda: states(service, "t") == ["FAILED"])
    explained = service.get("/api/v1/items/t/explain")
    assert explained["code"] == "POOL_UNKNOWN"
    assert "there is no pool 'tran' (did you mean 'train'?)" in explained["sentence"]
    assert service.ask("GET", f"{POOLS}/tran")[0] == 404


def test_quota_limits_what_runs_and_explain_names_it(service: HttpService) -> None:
    submit(service, "a", "b", "c", pool="train")
    until(lambda: counts(service, "train") == (2, 1))
    explained = service.get("/api/v1/items/c/explain")
    assert explained["code"] == "POOL_FULL"
    assert "pool train uses 2 CPU of its 2 CPU" in explained["sentence"]
    assert "the quota of its pool is raised" in explained["unblocked_by"]
    assert explained["decision"]["pool_use"] == service.get(f"{POOLS}/train")["use"]
    assert use(service, "train") == {"quota": 2, "used": 2, "borrowed": 0, "lent": 0, "available": 0}
    planned = service.post("/api/v1/plan", {"task": a_task("d", pool="train").to_dict()})
    assert (planned["code"], planned["pool_use"]) == ("POOL_FULL", explained["decision"]["pool_use"])
    put(service, "train", quota={"CPU": 1})
    assert counts(service, "train") == (2, 1), "nothing is stopped"
    end(service, "a")
    assert counts(service, "train") == (1, 1)
    put(service, "train", quota={"CPU": 2, "GPU": 1})
    until(lambda: counts(service, "train") == (2, 0))


def test_a_quota_of_a_cluster(service: HttpService) -> None:
    put(service, "lab", cluster_quota={"mac": {"CPU": 1}})
    submit(service, "a", "b", pool="lab")
    until(lambda: counts(service, "lab") == (1, 1))
    assert service.get(f"{POOLS}/lab")["use"][0]["cluster"] == "mac"
    assert "POOL_FULL" in json.dumps(service.get("/api/v1/items/b/explain")["decision"])
    status, answer = service.ask("PUT", f"{POOLS}/lab", {"cluster_quota": {"mars": {"CPU": 1}}})
    assert (status, "there is no cluster 'mars'" in answer["message"]) == (422, True)


def test_a_pool_borrows_within_its_limits(service: HttpService) -> None:
    put(service, "a", quota={"CPU": 1}, cohort="c", borrow_limit={"CPU": 2})
    put(service, "b", quota={"CPU": 4}, cohort="c", lend_limit={"CPU": 1})
    submit(service, *"123", pool="a")
    until(lambda: counts(service, "a") == (2, 1))
    assert code(service, "3") == "POOL_FULL"
    assert (use(service, "a")["borrowed"], use(service, "b")["lent"]) == (1, 1)
    put(service, "b", quota={"CPU": 4}, cohort="c")
    until(lambda: counts(service, "a") == (3, 0))
    submit(service, "4", pool="a")
    assert code(service, "4") == "BORROW_LIMIT"


def test_a_protected_pool_does_not_borrow(service: HttpService) -> None:
    put(service, "a", quota={"CPU": 1}, cohort="c", protected=True)
    put(service, "b", quota={"CPU": 4}, cohort="c")
    submit(service, *"12", pool="a")
    until(lambda: counts(service, "a") == (1, 1))
    assert code(service, "2") == "POOL_FULL"


def test_the_priority_of_the_pool_replaces_0(service: HttpService) -> None:
    submit(service, "a", pool="train", start_after=5e9)
    submit(service, "b", pool="train", priority=1, start_after=5e9)
    assert [service.get(f"/api/v1/items/{one}/explain")["priority"] for one in "ab"] == [3, 1]


def test_a_pool_is_for_its_owners(service: HttpService) -> None:
    put(service, "own", owners=["ann", "ben"], quota={"CPU": 1})
    ann, sam = service.token_for("ann", Role.SUBMITTER), service.token_for("sam", Role.SUBMITTER)
    for name, token in (("a", ann), ("s", sam)):
        assert service.ask("POST", "/api/v1/items", body(a_task(name, pool="own")), token=token)[0] == 200
    until(lambda: states(service, "a", "s") == ["RUNNING", "FAILED"])
    assert code(service, "s") == "POOL_FORBIDDEN"
    seen = {who: service.ask("GET", POOLS, token=token)[1]["pools"] for who, token in (("ann", ann), ("sam", sam))}
    assert [[row["name"] for row in rows] for rows in seen.values()] == [["own", "train"], ["train"]]
    assert seen["ann"][0]["owners"] == ["ann"], "not those of others"
    assert service.ask("GET", f"{POOLS}/own", token=sam)[0] == 404
    for path in ("/api/v1/settings", POOLS):
        assert "ben" not in json.dumps(service.ask("GET", path, token=ann)[1]["pools"])


def test_it_holds_after_a_restart(service: HttpService) -> None:
    put(service, "made", quota={"CPU": 1}, labels={"x": "y"})
    put(service, "train", quota={"CPU": 1})
    submit(service, "a", "b", pool="made")
    until(lambda: counts(service, "made") == (1, 1))
    before = service.get(POOLS)
    assert [row["source"] for row in before["pools"]] == ["created", "changed"]
    service.restart()
    until(lambda: service.get(POOLS) == before)
    end(service, "a")
    until(lambda: states(service, "b") == ["RUNNING"])
    row = put(service, "train", quota={"CPU": 2}, labels={"team": "nlp"}, priority=3)
    assert row["source"] == "configured", "as in the file again"


def test_some_keys_are_changed(service: HttpService) -> None:
    status, row = service.ask("PATCH", f"{POOLS}/train", {"labels": {"team": "vision"}})
    assert (status, row["labels"], row["quota"], row["priority"]) == (200, {"team": "vision"}, {"CPU": 2}, 3)
    status, row = service.ask("PATCH", f"{POOLS}/train", {"cluster_quota": {"mac": {"memory": "1GiB"}}})
    assert (status, row["quota"], row["cluster_quota"]) == (200, {}, {"mac": {"memory": 2**30}})
    assert service.ask("PATCH", f"{POOLS}/none", {})[0] == 404


def test_deletion_is_refused_in_use_or_drains(service: HttpService) -> None:
    submit(service, "a", "b", "c", pool="train")
    until(lambda: counts(service, "train") == (2, 1))
    status, answer = service.ask("DELETE", f"{POOLS}/train")
    assert (status, "has 3 unfinished items" in answer["message"]) == (409, True)
    status, answer = service.ask("DELETE", f"{POOLS}/train?drain=true")
    assert (status, answer) == (200, {"name": "train", "deleted": False, "unfinished": 3})
    assert service.get(f"{POOLS}/train")["draining"]
    submit(service, "late", pool="train")
    until(lambda: states(service, "late") == ["FAILED"])
    assert code(service, "late") == "POOL_DRAINING"
    for name in "abc":
        end(service, name)
    until(lambda: service.ask("GET", f"{POOLS}/train")[0] == 404)
    service.restart()
    assert service.get(POOLS)["pools"] == [], "a configured pool stays deleted"
    assert service.ask("DELETE", f"{POOLS}/train")[0] == 404
    put(service, "train", quota={"CPU": 1})
    assert service.ask("DELETE", f"{POOLS}/train")[1]["deleted"]


def test_a_pool_that_drains_can_be_kept(service: HttpService) -> None:
    submit(service, "a", pool="train")
    service.ask("DELETE", f"{POOLS}/train?drain=true")
    assert service.ask("PATCH", f"{POOLS}/train", {"priority": 1})[1]["draining"]
    assert not put(service, "train", quota={"CPU": 2})["draining"]


def test_a_list_is_applied(service: HttpService) -> None:
    def applied(*pools: dict[str, Any], **more: Any) -> dict[str, list[str]]:
        status, answer = service.ask("PUT", POOLS, {"pools": list(pools), **more})
        assert status == 200, answer
        return {key: names for key, names in answer.items() if names}

    a, b = {"name": "a", "quota": {"CPU": 1}, "cohort": "c"}, {"name": "b", "quota": {"CPU": 1}, "cohort": "c"}
    assert applied(a, b) == {"created": ["a", "b"]}
    assert applied(a, {**b, "quota": {"CPU": 2}}) == {"changed": ["b"], "unchanged": ["a"]}
    submit(service, "t", pool="b")
    on_mac = [{"name": name, "cluster_quota": {"mac": {"CPU": 1}}, "cohort": "c"} for name in "ab"]
    assert applied(*on_mac) == {"changed": ["a", "b"]}, "both at once get the other kind of quota"
    status, answer = service.ask("PUT", POOLS, {"pools": [a]})
    assert (status, "cannot lend to each other" in answer["message"]) == (422, True)
    pruned = {"unchanged": ["a"], "deleted": ["train"], "draining": ["b"]}
    assert applied(on_mac[0], prune=True) == pruned
    end(service, "t")
    until(lambda: [row["name"] for row in service.get(POOLS)["pools"]] == ["a"])


def test_changes_are_events_and_audited(service: HttpService) -> None:
    def notes(what: str) -> list[OperationRecord]:
        records = service.plane.store.events_after(0, 1000)
        return [one.entry for one in records if isinstance(one.entry, OperationRecord) and one.entry.what == what]

    put(service, "a", quota={"CPU": 1})
    service.ask("PATCH", f"{POOLS}/a", {"quota": {"CPU": 2}})
    service.ask("DELETE", f"{POOLS}/a")
    until(lambda: len(notes("pool_changed")) == 3)
    changes = [(one.subject, json.loads(one.document)) for one in notes("pool_changed")]
    assert [(name, one["change"], one.get("quota")) for name, one in changes] == [
        ("a", "created", {"CPU": 1}),
        ("a", "changed", {"CPU": 2}),
        ("a", "deleted", None),
    ]
    actions = [(one.subject, json.loads(one.document)["action"]) for one in notes("action")]
    assert actions == [("pool a", "set"), ("pool a", "set"), ("pool a", "delete")]


def test_metrics(service: HttpService) -> None:
    submit(service, "a", "b", "c", pool="train")
    until(lambda: counts(service, "train") == (2, 1))
    text = service.get("/metrics").decode()
    labels = '{cluster="",pool="train",resource="CPU"}'
    assert f"rmcs_pool_quota{labels} 2" in text
    assert f"rmcs_pool_used{labels} 2" in text
    assert f"rmcs_pool_borrowed{labels} 0" in text
    assert 'rmcs_pool_waiting{pool="train"} 1' in text


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"qota": {}}, "pool p, qota: unknown key (did you mean 'quota'?)"),
        ({"quota": {"CPU": -1}}, "quota['CPU'] is -1"),
        ({"quota": {"CPU": 1}, "cluster_quota": {"mac": {"CPU": 1}}}, "has quota and cluster_quota"),
        ({"priority": "high"}, "priority: expected a valid number"),
        ({"priority": float("inf")}, "priority"),
        ({"owners": ["a\nb"]}, "one line"),
        ({"labels": {"": "x"}}, "labels"),
        ({"name": "q"}, "cannot be renamed"),
        ([1], "The body is a list."),
    ],
)
def test_invalid_pools_are_rejected(service: HttpService, values: Any, words: str) -> None:
    status, answer = service.ask("PUT", f"{POOLS}/p", values)
    assert (status, answer["error"]) == (422, "ConfigurationError")
    assert words in answer["message"]
    assert answer["next_step"]
    assert service.ask("PUT", f"{POOLS}/a%20b", {})[0] == 422
    assert service.ask("PUT", POOLS, {"pools": values})[0] == 422
    assert service.ask("GET", f"{POOLS}/p")[0] == 404


def test_there_are_not_too_many(service: HttpService) -> None:
    status, answer = service.ask("PUT", POOLS, {"pools": [{"name": f"p{number}"} for number in range(1000)]})
    assert (status, answer["message"]) == (422, "There would be 1,001 pools.")
    status, answer = service.ask("PUT", POOLS, {"pools": [{}] * 1001})
    assert (status, answer["message"]) == (422, "There would be 1,001 pools.")


def test_a_file_that_does_not_suit_created_pools_is_refused_at_the_start(service: HttpService) -> None:
    put(service, "made", cluster_quota={"mac": {"CPU": 1}}, cohort="c")
    check_stored_pools(service.plane.store, [PoolConfig(name="train", quota={"CPU": 2}, cohort="other")])
    with pytest.raises(ConfigurationError, match="cannot lend to each other"):
        check_stored_pools(service.plane.store, [PoolConfig(name="train", quota={"CPU": 2}, cohort="c")])
