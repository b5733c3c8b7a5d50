"""Another item under an id or a key that is taken is refused, not answered with the first one and lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler.app.client_api.unified_scheduler import UnifiedScheduler
from ray_multicluster_scheduler.common.exception import ConfigurationError
from tests.unit.client_api.control_plane import until
from tests.unit.service.http_service import HttpService, body
from tests.unit.service.service_plane import a_task

JOB: dict[str, Any] = {"id": "n", "kind": "job", "name": "nightly", "job": {"entrypoint": "python a.py"}}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[HttpService]:
    with HttpService(tmp_path, works=True) as service:
        yield service


@pytest.fixture
def scheduler(service: HttpService) -> Iterator[UnifiedScheduler]:
    with UnifiedScheduler(address=service.address) as scheduler:
        yield scheduler


def submitted(service: HttpService, task: dict[str, Any], **headers: str) -> tuple[int, Any]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return service.ask("POST", "/api/v1/items", {"task": task}, headers=named)


OTHERS = {
    "entrypoint": {"job": {"entrypoint": "python b.py"}},
    "requirements": {"requirements": {"CPU": 2}},
}


@pytest.mark.parametrize("what", OTHERS)
def test_another_job_under_an_id_that_is_taken(service: HttpService, what: str) -> None:
    assert submitted(service, JOB)[0] == 200
    for restarts in (False, True):
        if restarts:
            service.restart()
        assert submitted(service, JOB)[1]["id"] == "n"
        status, answer = submitted(service, {**JOB, **OTHERS[what]})
        assert status == 422, answer
        assert "The id n was used for another job" in answer["message"]
        assert what in answer["message"]


def test_a_repeat_with_a_secret_is_the_same_after_a_restart_too(service: HttpService) -> None:
    """It is sealed in the store."""
    secret = {**JOB, "job": {"entrypoint": "API_KEY=canary1 python a.py"}}
    assert submitted(service, secret, Idempotency_Key="k")[0] == 200
    until(lambda: service.get("/api/v1/items/n")["state"] == "SUCCEEDED")
    service.restart()
    assert submitted(service, secret)[1]["id"] == "n"
    assert submitted(service, secret, Idempotency_Key="k")[1]["id"] == "n"
    status, answer = submitted(service, {**JOB, "job": {"entrypoint": "API_KEY=canary1 python b.py"}})
    assert (status, "canary" in str(answer)) == (422, False)


def test_secrets_are_not_printed(service: HttpService) -> None:
    submitted(service, {**JOB, "job": {"entrypoint": "python a.py --password canary1"}})
    status, answer = submitted(service, {**JOB, "job": {"entrypoint": "python b.py --password canary2"}})
    assert (status, "canary" in str(answer)) == (422, False)


def test_a_task_with_other_code_or_arguments_under_one_id(service: HttpService) -> None:
    assert service.ask("POST", "/api/v1/items", body(a_task("t")))[0] == 200
    assert service.ask("POST", "/api/v1/items", body(a_task("t")))[0] == 200
    task = a_task("t")
    for other in ({"function_digest": task.arguments_digest}, {"arguments_digest": task.function_digest}):
        status, answer = service.ask("POST", "/api/v1/items", body(a_task("t", **other)))
        assert (status, "The id t was used" in answer["message"]) == (422, True)


def test_a_key_in_the_header_is_for_one_id(service: HttpService) -> None:
    assert submitted(service, {**JOB, "id": "a"}, Idempotency_Key="k")[1]["id"] == "a"
    assert submitted(service, {**JOB, "id": "a"}, Idempotency_Key="k")[1]["id"] == "a"
    unnamed = {key: value for key, value in JOB.items() if key != "id"}
    assert submitted(service, unnamed, Idempotency_Key="k")[1]["id"] == "a"
    status, answer = submitted(service, {**JOB, "id": "b"}, Idempotency_Key="k")
    assert (status, answer["message"]) == (422, "b was given the key 'k', which was used for a.")


def twice(value: int) -> int:
    return 2 * value


def thrice(value: int) -> int:
    return 3 * value


def test_programs_hear_of_it_too(scheduler: UnifiedScheduler, service: HttpService) -> None:
    assert scheduler.submit_job("python a.py", submission_id="j") == "j"
    assert scheduler.submit_job("python a.py", submission_id="j") == "j"
    with pytest.raises(ConfigurationError, match=r"The id j was used for another job: its entrypoint is 'python a.py'"):
        scheduler.submit_job("python b.py", submission_id="j")
    with UnifiedScheduler(address=service.address) as another:
        assert another.submit_job("python a.py", submission_id="j") == "j"
    with (
        UnifiedScheduler(address=service.address) as another,
        pytest.raises(ConfigurationError, match="The id j was used for another job"),
    ):
        another.submit_job("python b.py", submission_id="j")


def test_one_that_was_found_by_its_id_is_the_same_whatever_it_is_called(service: HttpService) -> None:
    with UnifiedScheduler(address=service.address) as one:
        one.submit_job("python a.py", submission_id="j", name="nightly")
    with UnifiedScheduler(address=service.address) as another:
        another.handle("j")
        assert another.submit_job("python a.py", submission_id="j", name="nightly") == "j"


def test_a_key_of_a_program_is_for_one_function_whatever_bytes_its_arguments_have(scheduler: UnifiedScheduler) -> None:
    assert scheduler.submit_task(twice, (1,), idempotency_key="k") == 2
    assert scheduler.submit_task(twice, (2,), idempotency_key="k") == 2, "arguments are not compared"
    with pytest.raises(ConfigurationError, match="The key 'k'.*its name is"):
        scheduler.submit_task(thrice, (1,), idempotency_key="k")
    with pytest.raises(ConfigurationError, match="requirements"):
        scheduler.submit_task(twice, (1,), resource_requirements={"CPU": 2}, idempotency_key="k")


def test_a_job_with_a_key_of_another_id(scheduler: UnifiedScheduler) -> None:
    assert scheduler.submit_job("ls", submission_id="a", idempotency_key="k") == "a"
    assert scheduler.submit_job("ls", submission_id="a", idempotency_key="k") == "a"
    with pytest.raises(ConfigurationError, match="b was given the key 'k', which was used for a"):
        scheduler.submit_job("ls", submission_id="b", idempotency_key="k")
