"""A submitted secret reaches its cluster and nothing else: no store, log, answer or error has it."""

from __future__ import annotations

import json
import logging
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from ray_multicluster_scheduler.common.exception import StoreError, TaskSubmissionError
from ray_multicluster_scheduler.common.model import FailureClass, JobDescription, TaskDescription
from ray_multicluster_scheduler.common.redaction import MASKED
from ray_multicluster_scheduler.control_plane.config import ClusterConfig
from ray_multicluster_scheduler.control_plane.store import OperationRecord
from ray_multicluster_scheduler.control_plane.store.secret_encryption import (
    UNDECRYPTABLE,
    SecretCipher,
    is_undecryptable,
    mask_encrypted,
)
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult
from ray_multicluster_scheduler.scheduler.lifecycle.events import AttemptFinished
from ray_multicluster_scheduler.scheduler.scheduler_core.attempt_preparation import AttemptPreparation, PreparedAttempt
from ray_multicluster_scheduler.scheduler.scheduler_core.record_codec import decode_task, encode_description
from tests.unit.client_api.control_plane import until
from tests.unit.client_api.test_job_logs import Dashboard
from tests.unit.service.event_reader import EventReader
from tests.unit.service.http_service import HttpService, body
from tests.unit.service.service_plane import a_task
from tests.unit.service.test_role_matrix import EXAMPLES

CANARY = "c4nary-that-must-not-sing"
ENV = {
    "env_vars": {"HF_TOKEN": CANARY, "DB_PASSWORD": f"{CANARY}2", "PLAIN": "plain"},
    "pip": [f"--index-url=https://me:{CANARY}@pypi.example/simple", "numpy"],
}
COMMAND = f"API_KEY={CANARY} python train.py --password {CANARY} --lr 1"
IN_JSON = f"""python train.py '--conf={{"password": "{CANARY}", "max_tokens": 5}}'"""
FAILING = 'sh -c "exit 3" --password=failing-entry-qqq --token=failtok-qqq'


def a_secret_job(name: str) -> TaskDescription:
    encode_description = JobDescription(COMMAND, metadata={"team": "weather", "api_token": CANARY})
    return TaskDescription(id=name, kind="job", name=COMMAND, job=encode_description, runtime_env=ENV, start_after=5e9)


def a_job_with_json(name: str) -> TaskDescription:
    return TaskDescription(id=name, kind="job", name=IN_JSON, job=JobDescription(IN_JSON), start_after=5e9)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[HttpService]:
    with HttpService(tmp_path / "state", auth="token") as one:
        yield one


def kept(service: HttpService) -> bytes:
    folder = service.plane.folder
    return b"".join(one.read_bytes() for one in folder.rglob("*") if one.is_file())


def every_answer(service: HttpService, ids: dict[str, str]) -> str:
    """Of each route that can be asked with GET, of each of these items, and of waiting for them."""
    reported = [json.dumps(service.app.openapi())]
    for route, example in EXAMPLES.items():
        verb, _, _ = route.partition(" ")
        for kind, name in ids.items():
            if verb == "GET" and example.of in (None, kind):
                reported.append(str(service.ask("GET", example.path.replace("{id}", name))))
    reported.append(str(service.ask("POST", "/api/v1/wait", {"client": "c", "add": list(ids.values()), "timeout": 0})))
    return "\n".join(reported)


def test_the_canary(service: HttpService, caplog: pytest.LogCaptureFixture) -> None:
    runtime = service.plane.runtime
    with caplog.at_level(logging.DEBUG):
        reported = [
            service.post("/api/v1/items", body(a_task("t", runtime_env=ENV))),
            service.post("/api/v1/items", body(a_secret_job("j"))),
            service.post("/api/v1/items/batch", {"items": [{"task": a_secret_job("j2").to_dict()}]}),
            service.ask("POST", "/api/v1/plan", {"task": a_secret_job("p").to_dict()}),
        ]
        until(lambda: service.get("/api/v1/items/t")["state"] == "RUNNING")
        for name in ("t", "j"):
            sent = {**ENV, "env_vars": {**ENV["env_vars"], "RMCS_CLUSTER": "mac"}}  # type: ignore[dict-item]  # it is one
            runtime.preparation.prepared[name] = PreparedAttempt("mac", 1, sent, COMMAND)
        ids = {"task": "t", "job": "j"}
        before = every_answer(service, ids)
        assert MASKED in before
        assert "python train.py" in before, "what is no secret is shown"
        # In its own process it is as it was given: that is what clusters are sent.
        assert runtime.machine.record("t").task.runtime_env == ENV
        service.restart()
        runtime = service.plane.runtime
        for name in ("t", "j", "j2"):
            assert runtime.machine.record(name).task.runtime_env == ENV
        job = runtime.machine.record("j").task.job
        assert job == a_secret_job("j").job
        after = every_answer(service, ids)
        for name in ("t", "j"):
            service.post(f"/api/v1/items/{name}/cancel", {})
        until(lambda: service.get("/api/v1/items/j")["state"] == "CANCELLED")
        service.restart()
        over = every_answer(service, ids)
    assert CANARY not in str(reported) + before + after + over
    assert CANARY.encode() not in kept(service)
    assert CANARY not in caplog.text
    assert (service.plane.folder / "secret.key").read_bytes()
    assert stat.S_IMODE((service.plane.folder / "secret.key").stat().st_mode) == 0o600


def test_a_password_in_json_in_an_entrypoint(service: HttpService, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        service.post("/api/v1/items", body(a_job_with_json("j")))
        reported = every_answer(service, {"job": "j"})
        service.restart()
        reported += every_answer(service, {"job": "j"})
    assert service.plane.runtime.machine.record("j").task.job == JobDescription(IN_JSON)
    assert "max_tokens" in reported
    assert CANARY not in reported + caplog.text
    assert CANARY.encode() not in kept(service)


@pytest.mark.parametrize("reason", [f"password={CANARY}", f"a note\nauth={CANARY}", f"--token '{CANARY}'"])
def test_a_reason_is_masked_where_actions_are_recorded(
    service: HttpService, caplog: pytest.LogCaptureFixture, reason: str
) -> None:
    service.post("/api/v1/items", body(a_task("t", start_after=5e9, owner="ann")))
    with caplog.at_level(logging.DEBUG):
        service.post("/api/v1/queue/owner/zed/pause", {"reason": reason})
        service.post("/api/v1/items/t/cancel", {"reason": reason})
        until(lambda: service.get("/api/v1/items/t")["state"] == "CANCELLED")
    actions = [vars(one) for one in caplog.records if hasattr(one, "action")]
    assert {one["action"] for one in actions} == {"pause", "cancel"}
    assert all(MASKED in one["details"]["reason"] for one in actions)
    assert CANARY not in str(actions)
    assert CANARY not in caplog.text, "nor in the report of the item's end"
    assert CANARY not in str(service.get("/api/v1/items/t")) + str(service.get("/api/v1/owners"))
    notes = [one.entry for one in service.plane.store.events_after(0, 1000) if isinstance(one.entry, OperationRecord)]
    assert not any(CANARY.encode() in note.document for note in notes)


def test_words_of_an_action_that_others_wrote_are_masked(
    service: HttpService, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        runtime = service.plane.runtime
        runtime.call_and_wait(lambda: runtime.audit("ann", None, "try", "mac", {"note": f"token={CANARY}", "n": 5}))
    assert f"note='token={MASKED}' n=5" in caplog.text


class Talkative(Dashboard):
    """A cluster that says again what it was given, as Ray does."""

    async def job_logs(self, ray_id: str) -> str:
        return f"Running entrypoint for job {ray_id}: {FAILING}\n"


def test_what_a_cluster_reports_of_a_job_reveals_no_secret(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray writes the whole command line into the log of a job, and the end of that log into how it failed."""
    line = f"Running entrypoint for job x: {FAILING}\n"
    output = f"Job entrypoint command failed with exit code 3, last logs:\n{line}"
    dashboard = Talkative()
    with HttpService(tmp_path / "state", auth="token", kept_finished=1) as service, caplog.at_level(logging.DEBUG):
        plane, runtime = service.plane, service.plane.runtime
        monkeypatch.setattr(runtime, "clients", dashboard)
        for name in ("j", "k"):
            job = TaskDescription(id=name, kind="job", name="j", job=JobDescription(FAILING))
            service.post("/api/v1/items", body(job))
        until(lambda: service.get("/api/v1/items/k")["state"] == "RUNNING")
        dashboard.pieces[runtime.jobs.ray_id("j", 1)] = [line[:70], line[70:75], line[75:]]
        failed = AttemptFinished("j", 1, "failed", FailureClass.USER, "JobFailed", "JOB_FAILED", sentence=output)
        runtime.call_and_wait(lambda: plane.post(failed))
        until(lambda: service.get("/api/v1/items/j")["state"] == "FAILED")
        _, followed = service.ask("GET", "/api/v1/items/j/logs?follow=true")
        reported = every_answer(service, {"job": "j"})
        runtime.call_and_wait(lambda: plane.post(replace(failed, task_id="k")))
        until(lambda: runtime.record("j") is None)
        old = every_answer(service, {"job": "j"}) + every_answer(service, {"job": "k"})
        reader = EventReader(service.port, "/api/v1/events?since=0", {"Authorization": f"Bearer {service.token}"})
        events = str([*reader.until(state="FAILED"), *reader.until(state="FAILED")])
        reader.close()
        assert "exit code 3" in reported
        assert "exit code 3" in old
        assert f"--password={MASKED} --token={MASKED}" in followed.decode()
        for one in ("failing-entry-qqq", "failtok-qqq"):
            assert one not in reported + old + events + followed.decode()
            assert one not in caplog.text
            assert one.encode() not in kept(service)


def test_output_and_messages_of_a_task_reveal_no_secret(service: HttpService) -> None:
    plane = service.plane
    service.post("/api/v1/items", body(a_task("t", runtime_env=ENV)))
    until(lambda: service.get("/api/v1/items/t")["state"] == "RUNNING")
    plane.runtime.call_and_wait(lambda: plane.runtime.collector.output("mac", "t", 1, "stdout", f"I have {CANARY}\n"))
    plane.end(
        CallResult(
            "t", 1, "failed", None, FailureClass.USER, "ValueError", message=f"no {CANARY}", traceback=f"at {CANARY}"
        )
    )
    until(lambda: service.get("/api/v1/items/t")["state"] == "FAILED")
    reported = every_answer(service, {"task": "t"})
    service.restart()
    reported += every_answer(service, {"task": "t"})
    assert "I have " in reported
    assert CANARY not in reported
    assert CANARY.encode() not in kept(service)


def test_tokens_and_environments_of_clusters_are_not_shown(
    service: HttpService, caplog: pytest.LogCaptureFixture
) -> None:
    mac = ClusterConfig(name="mac", dashboard="http://127.0.0.1:9", auth_token=SecretStr(CANARY), runtime_env=ENV)
    service.plane.config = service.plane.config.model_copy(update={"clusters": (mac,)})
    with caplog.at_level(logging.DEBUG):
        service.restart()
        service.post("/api/v1/items", body(a_task("t")))
        reported = every_answer(service, {"task": "t"})
    assert CANARY not in reported + caplog.text
    assert CANARY.encode() not in kept(service)


@pytest.mark.parametrize(
    "wrong",
    [
        {"runtime_env": [CANARY]},
        {"runtime_env": CANARY},
        {"runtime_env": {"env_vars": {"TOKEN": CANARY}}, "retries": -1},
        {"runtime_env": {"env_vars": {"TOKEN": CANARY}}, "owner": 5},
        {"job": CANARY},
        {"job": {"entrypoint": [CANARY]}},
        {"job": {"entrypoint": "x", "metadata": {"token": [CANARY]}}},
        {"job": {"entrypoint": "x", "metadata": CANARY}},
        {"kind": "actor", "runtime_env": {"env_vars": {"TOKEN": CANARY}}},
    ],
)
def test_errors_do_not_say_it_again(service: HttpService, wrong: dict[str, Any]) -> None:
    task = {"id": "x", "kind": "job", "name": "x", "job": {"entrypoint": "x"}, **wrong}
    status, output = service.ask("POST", "/api/v1/items", {"task": task})
    assert status == 422
    assert CANARY not in str(output)


def test_what_is_no_secret_needs_no_key(service: HttpService) -> None:
    service.post("/api/v1/items", body(a_task("t", runtime_env={"env_vars": {"PLAIN": "x"}})))
    assert not (service.plane.folder / "secret.key").exists()
    stored = service.plane.store.item("t")
    assert stored is not None
    assert b"sealed" not in stored.new.description


def test_a_lost_key_harms_only_what_needs_it(service: HttpService) -> None:
    service.post("/api/v1/items", body(a_task("t", 1000, start_after=5e9, runtime_env=ENV)))
    service.post("/api/v1/items", body(a_task("other", 1, start_after=5e9)))
    service.stop()
    (service.plane.folder / "secret.key").unlink()
    service.start()
    record = service.plane.runtime.machine.record("t")
    assert record.task.runtime_env["env_vars"] == {
        "HF_TOKEN": UNDECRYPTABLE,
        "DB_PASSWORD": UNDECRYPTABLE,
        "PLAIN": "plain",
    }
    assert service.get("/api/v1/items/other")["state"] == "PENDING"
    assert UNDECRYPTABLE not in every_answer(service, {"task": "t"})
    service.post("/api/v1/items", body(a_task("new", 1, start_after=5e9, runtime_env=ENV)))
    service.restart()
    assert service.plane.runtime.machine.record("new").task.runtime_env == ENV


async def test_one_whose_key_is_lost_is_refused_with_a_sentence() -> None:
    preparation = AttemptPreparation(None, None, "/home/me")  # type: ignore[arg-type]  # nothing is asked
    preparation.update({"mac": ClusterConfig(name="mac", dashboard="http://127.0.0.1:9")})
    task = TaskDescription(id="t", kind="task", name="t", runtime_env={"env_vars": {"TOKEN": UNDECRYPTABLE}})
    with pytest.raises(TaskSubmissionError, match=r"t has secrets that were encrypted with a key that is missing"):
        await preparation.task(task, "mac", 1)
    job = TaskDescription(id="j", kind="job", name="j", job=JobDescription(UNDECRYPTABLE))
    with pytest.raises(TaskSubmissionError, match="submit it again"):
        await preparation.job(job, "mac", 1, 1)


def test_sealed_and_opened(tmp_path: Path) -> None:
    cipher = SecretCipher(tmp_path / "secret.key")
    sealed = cipher.encrypt(ENV)
    assert CANARY not in json.dumps(sealed)
    assert SecretCipher(tmp_path / "secret.key").decrypt(sealed) == ENV
    assert mask_encrypted(sealed)["env_vars"] == {"HF_TOKEN": MASKED, "DB_PASSWORD": MASKED, "PLAIN": "plain"}
    assert not is_undecryptable(ENV)
    assert is_undecryptable(SecretCipher(tmp_path / "other.key").decrypt(sealed))
    (tmp_path / "secret.key").chmod(0o644)
    assert is_undecryptable(SecretCipher(tmp_path / "secret.key").decrypt(sealed))
    with pytest.raises(StoreError, match="is readable by other users"):
        SecretCipher(tmp_path / "secret.key").encrypt(ENV)


def test_a_mark_in_a_users_description_means_nothing(service: HttpService) -> None:
    env = {"config": {"$sealed": "nonsense"}}
    service.post("/api/v1/items", body(a_task("t", start_after=5e9, runtime_env=env)))
    service.restart()
    assert service.plane.runtime.machine.record("t").task.runtime_env == env


def test_without_a_sealer_what_was_sealed_is_masked(tmp_path: Path, service: HttpService) -> None:
    service.post("/api/v1/items", body(a_secret_job("j")))
    stored = service.plane.store.item("j")
    assert stored is not None
    task, _ = decode_task(stored)
    assert task.job is not None
    assert task.job.entrypoint == MASKED
    assert CANARY not in str(task)
    assert CANARY.encode() not in encode_description(task)
