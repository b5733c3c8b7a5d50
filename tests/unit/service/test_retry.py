"""What is over is submitted once more over HTTP; ids and keys that the service makes or is given in a header."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.common.model.item_fields import ID
from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import Role
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult
from tests.unit.client_api.control_plane import until
from tests.unit.service.http_service import HttpService, body
from tests.unit.service.service_plane import a_job, a_task, running

pytestmark = pytest.mark.usefixtures("leak_check")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[HttpService]:
    with HttpService(tmp_path / "state", submission_interval_s=0) as service:
        yield service


def failed(service: HttpService, item_id: str, **values: Any) -> None:
    service.submit(item_id, **values)
    running(service.item(item_id))
    found = service.item(item_id)
    service.plane.end(CallResult(item_id, 1, "failed", error_type="ValueError", message="no"))
    until(found.done)
    assert found.state is TaskState.FAILED


# ---- retry


def test_failed_item_is_retried_as_a_new_item(service: HttpService) -> None:
    failed(service, "t", owner="ann", priority=3)
    answer = service.post("/api/v1/items/t/retry")
    assert answer["repeats"] == "t"
    assert answer["id"] not in ("t", None)
    again = running(service.item(answer["id"])).task
    before = service.plane.store.item("t")
    assert before is not None
    assert (again.owner, again.priority, again.function_digest) == ("ann", 3, a_task("t").function_digest)
    assert again.submitted_at >= before.new.submitted_at
    assert service.get("/api/v1/items/t")["state"] == "FAILED"


def test_both_name_each_other_also_after_a_restart(service: HttpService) -> None:
    failed(service, "t")
    assert "repeated_by" not in service.get("/api/v1/items/t")
    again, third = (service.post("/api/v1/items/t/retry", {"id": name})["id"] for name in ("again", "third"))
    service.plane.finish(running(service.item(third)), b"value")
    for _ in range(2):
        for path in ("", "/explain"):
            for name in (again, third):  # one in progress, one over
                assert service.get(f"/api/v1/items/{name}{path}")["repeats"] == "t"
                assert "repeated_by" not in service.get(f"/api/v1/items/{name}{path}")
            before = service.get(f"/api/v1/items/t{path}")
            assert ("repeats" in before, before["repeated_by"]) == (False, [again, third])
        service.restart()


def test_the_same_failure_is_not_repeated_twice_by_mistake(service: HttpService) -> None:
    failed(service, "t")
    again = service.post("/api/v1/items/t/retry")["id"]
    for _ in range(2):
        status, answer = service.ask("POST", "/api/v1/items/t/retry", {})
        assert (status, answer["task_id"]) == (409, "t")
        assert answer["message"].startswith(f"t was retried already, as {again}, which is ")
        assert "anyway" in answer["next_step"]
        service.restart()
    named = service.post("/api/v1/items/t/retry", {"id": "third"})["id"]
    wanted = service.post("/api/v1/items/t/retry", {"anyway": True})["id"]
    assert service.get("/api/v1/items/t")["repeated_by"] == [again, named, wanted]


def test_of_many_who_repeat_it_at_once_one_does(service: HttpService) -> None:
    failed(service, "t")
    with ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(service.ask, "POST", "/api/v1/items/t/retry", {}) for _ in range(8)]
        answers = [one.result(30) for one in asked]
    assert sorted(status for status, _ in answers) == [200, *[409] * 7]
    assert len(service.get("/api/v1/items/t")["repeated_by"]) == 1


def test_only_a_retry_says_what_it_repeats(service: HttpService) -> None:
    failed(service, "t")
    output = {**a_task("other").to_dict(), "repeats": "t"}
    status, answer = service.ask("POST", "/api/v1/items", {**body(a_task("other")), "task": output})
    assert (status, "repeats" in answer["message"]) == (422, True)


def test_it_may_have_an_id_and_is_the_same_again(service: HttpService) -> None:
    failed(service, "t")
    for _ in range(2):
        assert service.post("/api/v1/items/t/retry", {"id": "t2"})["id"] == "t2"
    assert sum(order.task_id == "t2" for order in service.plane.placed) == 1


@pytest.mark.parametrize("made", ["", "a/b", 5, [], "x" * 257, "t"])
def test_an_id_that_is_none(service: HttpService, made: object) -> None:
    failed(service, "t")
    assert service.ask("POST", "/api/v1/items/t/retry", {"id": made})[0] == 422


def test_what_goes_on_is_not_repeated_and_what_succeeded_only_anyway(service: HttpService) -> None:
    service.submit("t")
    running(service.item("t"))
    status, answer = service.ask("POST", "/api/v1/items/t/retry", {})
    assert (status, "has not ended" in answer["message"]) == (409, True)
    service.plane.finish(service.item("t"), b"pickled")
    status, answer = service.ask("POST", "/api/v1/items/t/retry", {})
    assert (status, "anyway" in answer["next_step"]) == (409, True)
    assert service.post("/api/v1/items/t/retry", {"anyway": True})["repeats"] == "t"


def test_a_cancelled_job_runs_again(service: HttpService) -> None:
    service.post("/api/v1/items", {"task": a_job("j").to_dict()})
    found = service.item("j")
    service.post("/api/v1/items/j/cancel")
    until(found.done)
    answer = service.post("/api/v1/items/j/retry")
    assert answer["id"].startswith("job-")
    assert service.item(answer["id"]).task.job == a_job("j").job


def test_after_a_restart_too(service: HttpService) -> None:
    failed(service, "t")
    service.restart()
    assert running(service.item(service.post("/api/v1/items/t/retry")["id"]))


def test_what_was_forgotten_is_refused_with_a_sentence(service: HttpService) -> None:
    failed(service, "t")
    store = service.plane.store
    store.expire_payloads(service.plane.runtime.clock.now() + 1)
    for _ in range(3):
        store.delete_unused_blobs()
    status, answer = service.ask("POST", "/api/v1/items/t/retry", {})
    assert (status, answer["code"]) == (409, "RESULT_LOST")
    assert "deleted" in answer["message"]
    assert service.ask("POST", "/api/v1/items/nobody/retry", {})[0] == 404


def test_a_submitter_repeats_only_its_own_items_and_finds_no_others(tmp_path: Path) -> None:
    with HttpService(tmp_path, auth="token") as service:
        ann, bob = (service.token_for(name, Role.SUBMITTER) for name in ("ann", "bob"))
        for name, token in (("anns", ann), ("bobs", bob)):
            service.ask("POST", "/api/v1/items", body(a_task(name, 0, start_after=5e9)), token=token)
            service.ask("POST", f"/api/v1/items/{name}/cancel", {}, token=token)
        assert service.ask("POST", "/api/v1/items/anns/retry", {}, token=bob)[0] == 404
        status, answer = service.ask("POST", "/api/v1/items/bobs/retry", {"id": "anns"}, token=bob)
        assert (status, answer["message"]) == (403, "anns does not belong to bob.")
        status, answer = service.ask("POST", "/api/v1/items/bobs/retry", {"id": "again"}, token=bob)
        assert (status, answer["id"]) == (200, "again")


def test_what_is_repeated_has_its_secrets(service: HttpService) -> None:
    env = {"env_vars": {"API_TOKEN": "canary"}}
    service.post("/api/v1/items", body(a_task("t", 0, start_after=5e9, runtime_env=env)))
    service.post("/api/v1/items/t/cancel")
    again = service.plane.runtime.item(service.post("/api/v1/items/t/retry")["id"])
    assert again is not None
    assert again.task.runtime_env == env


# ---- keys and ids


def keyed(service: HttpService, path: str, output: object, key: str) -> tuple[int, Any]:
    return service.ask("POST", path, output, headers={"Idempotency-Key": key})


JOB = {"kind": "job", "name": "nightly", "job": {"entrypoint": "python train.py"}}


def test_a_client_without_an_id_gets_one(service: HttpService) -> None:
    one, two = (service.post("/api/v1/items", {"task": JOB})["id"] for _ in range(2))
    assert one != two
    assert one.startswith("job-")
    batch = service.post("/api/v1/items/batch", {"items": [{"task": JOB}, {"task": {**JOB, "id": "mine"}}]})["items"]
    assert batch[0]["id"] not in (one, two)
    assert batch[1]["id"] == "mine"
    assert service.get(f"/api/v1/items/{one}")["name"] == "nightly"


def test_a_key_in_the_header_makes_a_repeat_harmless(service: HttpService) -> None:
    first = keyed(service, "/api/v1/items", {"task": JOB}, "monday")[1]["id"]
    assert keyed(service, "/api/v1/items", {"task": JOB}, "monday")[1]["id"] == first
    assert keyed(service, "/api/v1/items", {"task": JOB}, "tuesday")[1]["id"] != first
    service.restart()
    assert keyed(service, "/api/v1/items", {"task": JOB}, "monday")[1]["id"] == first


def test_a_key_for_something_else_is_refused(service: HttpService) -> None:
    assert keyed(service, "/api/v1/items", {"task": JOB}, "monday")[0] == 200
    other = {**JOB, "job": {"entrypoint": "rm"}}
    status, answer = keyed(service, "/api/v1/items", {"task": other}, "monday")
    assert (status, "was used for" in answer["message"]) == (422, True)
    status, answer = keyed(service, "/api/v1/items", {"task": {**JOB, "idempotency_key": "mine"}}, "monday")
    assert (status, "is 'monday'" in answer["message"]) == (422, True)
    assert keyed(service, "/api/v1/items", {"task": {**JOB, "idempotency_key": "monday"}}, "monday")[0] == 200
    assert keyed(service, "/api/v1/items", {"task": JOB}, "x" * 256)[0] == 422


def test_of_a_batch_each_has_a_key_of_its_own(service: HttpService) -> None:
    output = {"items": [{"task": JOB}, {"task": JOB}, {"task": {**JOB, "idempotency_key": "mine"}}]}
    first = [one["id"] for one in keyed(service, "/api/v1/items/batch", output, "monday")[1]["items"]]
    assert len(set(first)) == 3
    assert [one["id"] for one in keyed(service, "/api/v1/items/batch", output, "monday")[1]["items"]] == first


def test_a_retry_with_a_key_happens_once(service: HttpService) -> None:
    failed(service, "t")
    first = keyed(service, "/api/v1/items/t/retry", {}, "again")[1]["id"]
    assert keyed(service, "/api/v1/items/t/retry", {}, "again")[1]["id"] == first
    status, answer = keyed(service, "/api/v1/items/t/retry", {}, "and again")
    assert (status, answer["message"].startswith(f"t was retried already, as {first}, ")) == (409, True)
    second = keyed(service, "/api/v1/items/t/retry", {"anyway": True}, "and again")[1]["id"]
    assert service.get("/api/v1/items/t")["repeated_by"] == [first, second]
    service.restart()
    for key, made in (("again", first), ("and again", second)):
        assert keyed(service, "/api/v1/items/t/retry", {}, key)[1]["id"] == made


def test_of_those_with_a_key_and_without_who_repeat_it_at_once_one_does(service: HttpService) -> None:
    failed(service, "t")
    with ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(service.ask, "POST", "/api/v1/items/t/retry", {}) for _ in range(4)]
        asked += [threads.submit(keyed, service, "/api/v1/items/t/retry", {}, f"key {number}") for number in range(4)]
        answers = [one.result(30) for one in asked]
    assert sorted(status for status, _ in answers) == [200, *[409] * 7]
    assert len(service.get("/api/v1/items/t")["repeated_by"]) == 1


def test_retries_with_one_key_that_come_at_once_are_one(service: HttpService, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them have looked whether it was used before any of them goes on."""
    failed(service, "t")
    payloads, all_there, there = service.plane.runtime.payload_ownership, asyncio.Event(), 0
    look = payloads.missing

    async def missing(*args: Any) -> Any:
        nonlocal there
        there += 1
        if there == 4:
            all_there.set()
        await asyncio.wait_for(all_there.wait(), 20)
        return await look(*args)

    monkeypatch.setattr(payloads, "missing", missing)
    with ThreadPoolExecutor(4) as threads:
        output = {"anyway": True}  # else they come one after the other
        asked = [threads.submit(keyed, service, "/api/v1/items/t/retry", output, "again") for _ in range(4)]
        answers = [one.result(30) for one in asked]
    assert [status for status, _ in answers] == [200] * 4
    assert {reported["id"] for _, reported in answers} == set(service.get("/api/v1/items/t")["repeated_by"])
    assert len(service.get("/api/v1/items/t")["repeated_by"]) == 1
    assert there == 4


def test_a_submission_without_a_payload_says_so(service: HttpService) -> None:
    task = a_task("t").to_dict()
    del task["id"]
    assert service.ask("POST", "/api/v1/items", {**body(a_task("t")), "task": task})[0] == 200
    task["function_digest"] = None
    assert service.ask("POST", "/api/v1/items", {**body(a_task("t")), "task": task})[0] == 422


@pytest.mark.parametrize("new", ["last", "all", "..", "a/b", ""])
def test_an_id_that_nothing_may_have_is_refused_with_all_that_is_wrong(service: HttpService, new: str) -> None:
    failed(service, "t1")
    status, output = service.ask("POST", "/api/v1/items/t1/retry", {"id": new})
    assert status == 422
    assert output["next_step"] == f"give {ID.words}"
    assert "nor all or last, which commands use" in ID.words
