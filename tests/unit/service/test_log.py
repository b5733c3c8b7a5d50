"""What a service says in its log: how much, which may be changed while it runs, and as JSON lines."""

from __future__ import annotations

import io
import json
import logging
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from ray_multicluster_scheduler.common.logging import EXTRAS, LEVELS, ROOT, batched_lines, configure, level_now
from ray_multicluster_scheduler.common.model import FailureClass
from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import Role
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult
from tests.unit.client_api.control_plane import until
from tests.unit.service.http_service import USER, HttpService, body
from tests.unit.service.service_plane import a_job
from tests.unit.service.test_up import Folder, folder  # noqa: F401 - a fixture

WAY = "/api/v1/log-level"


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root = logging.getLogger(ROOT)
    saved = (root.level, root.propagate, list(root.handlers))
    yield
    root.propagate, root.handlers = saved[1], saved[2]
    root.setLevel(saved[0])


def test_a_debug_line_appears_after_it_was_asked_for_and_not_before(tmp_path: Path) -> None:
    stream = io.StringIO()
    configure("INFO", stream=stream)
    with batched_lines(), HttpService(tmp_path / "state", auth="token") as service:
        assert service.get(WAY) == {"level": "INFO"}
        service.get("/api/v1/fleet")
        assert service.ask("PUT", WAY, {"level": "DEBUG"}) == (200, {"level": "DEBUG"})
        before = stream.getvalue()
        assert service.get(WAY) == {"level": "DEBUG"}
        service.get("/api/v1/queue")
        until(lambda: "DEBUG GET '/api/v1/queue': 200" in stream.getvalue())
        assert "/api/v1/fleet" not in before
        assert f"action='set log level' subject='log' user={USER!r}" in stream.getvalue()
        assert service.ask("PUT", WAY, {"level": "WARNING"})[0] == 200
        until(lambda: stream.getvalue().count("action='set log level'") == 2)  # that it says less now is reported
        service.get("/api/v1/owners")
        events = [one.entry for one in service.plane.store.events_after(0, 100)]
    assert "/api/v1/owners" not in stream.getvalue()
    output = [json.loads(one.document) for one in events if getattr(one, "what", "") == "action"]
    assert [(one["action"], one["details"]) for one in output] == [
        ("set log level", {"level": "DEBUG", "before": "INFO"}),
        ("set log level", {"level": "WARNING", "before": "DEBUG"}),
    ]


@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        ({"level": "LOUD"}, "level is 'LOUD'."),
        ({"level": "debug"}, "level is 'debug'."),
        ({"level": 10}, "level is '10'."),
        ({}, "level is missing."),
        ({"level": "INFO", "for": 5}, "A log level has no field 'for'."),
    ],
)
def test_a_wrong_word_is_refused_with_those_that_are_right(
    tmp_path: Path, output: dict[str, Any], sentence: str
) -> None:
    with HttpService(tmp_path / "state") as service:
        before = level_now()
        status, problem = service.ask("PUT", WAY, output)
        assert (status, problem["message"]) == (422, sentence)
        assert "for" in output or all(one in problem["next_step"] for one in LEVELS)
        assert level_now() == before


def test_a_viewer_may_look_and_not_change_it(tmp_path: Path) -> None:
    with HttpService(tmp_path / "state", auth="token") as service:
        viewer = service.token_for("vera", Role.VIEWER)
        assert service.ask("GET", WAY, token=viewer)[0] == 200
        assert service.ask("PUT", WAY, {"level": "DEBUG"}, token=viewer)[0] == 403


def test_every_line_of_one_task_and_one_that_fails_is_json_with_its_fields(tmp_path: Path) -> None:
    stream = io.StringIO()
    configure("DEBUG", json=True, stream=stream)
    with batched_lines(), HttpService(tmp_path / "state", auth="token", retry_backoff={"base_s": 0.0}) as service:
        for name in ("good", "bad"):
            service.submit(name, retries=1)
            until(lambda name=name: service.get(f"/api/v1/items/{name}")["state"] == "RUNNING")
        service.plane.end(CallResult("good", 1, "succeeded"))
        for attempt in (1, 2):
            until(lambda attempt=attempt: service.get("/api/v1/items/bad")["attempt"] == attempt)
            until(lambda: service.get("/api/v1/items/bad")["state"] == "RUNNING")
            broken = CallResult("bad", attempt, "failed", failure=FailureClass.USER, message='two\nlines "quoted"')
            service.plane.end(broken)
        until(lambda: service.get("/api/v1/items/bad")["state"] == "FAILED")
        service.post("/api/v1/clusters/mac/cordon")
        explanations = {name: service.get(f"/api/v1/items/{name}/explain") for name in ("good", "bad")}
    lines = read(stream.getvalue())
    for name, explanation in explanations.items():
        found = [{key: line[key] for key in EXTRAS} for line in lines if line.get("id") == name]
        assert found == [
            {"id": name, "attempt": step["attempt"], "cluster": step["cluster"], "reason": step["code"]}
            for step in explanation["history"]
        ]
        about = [line for line in lines if name in line["message"].split() and "api" not in line["message"]]
        assert all(line.get("id") == name for line in about), about
    (action,) = [line for line in lines if "action" in line]
    assert (action["action"], action["user"], action["subject"]) == ("cordon", USER, "mac")
    assert action["token"]


def test_a_process_that_writes_json_writes_nothing_else(
    folder: Folder,  # noqa: F811 - a fixture
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "nonsense")  # which a library complains about
    monkeypatch.setenv("RMCS_TRACING", '{"endpoint": "http://127.0.0.1:1"}')
    words = ("up", "--config", str(folder.config), "--port", "0")
    process = folder.rmcs("--log-json", *words)
    address = address_of(folder)
    job = body(a_job("nightly", name="n"))
    for method, path, output in (
        ("POST", "/api/v1/items", job),
        ("POST", "/api/v1/items/nightly/cancel", {}),
        ("PUT", WAY, {"level": "DEBUG"}),
        ("GET", "/api/v1/fleet", None),
    ):
        data = None if output is None else json.dumps(output).encode()
        with urlopen(Request(f"{address}{path}", data, folder.headers, method=method), timeout=30) as response:
            assert response.status == 200
    process.send_signal(signal.SIGTERM)
    lines = read(folder.output(process))
    assert process.returncode == 0
    assert any(f"{address} is ready" in line["message"] for line in lines)
    assert any("stopped" in line["message"] for line in lines)
    assert any(line["logger"].startswith("opentelemetry") and "nonsense" in line["message"] for line in lines)
    steps = [line for line in lines if line.get("id") == "nightly"]
    assert len(steps) >= 2
    assert all(set(EXTRAS) <= set(line) for line in steps)
    actions = {line["action"]: line for line in lines if "action" in line}
    assert set(actions) >= {"first token", "set log level"}
    assert all(line["user"] for line in actions.values())
    assert any(line["level"] == "DEBUG" for line in lines)


def address_of(folder: Folder) -> str:  # noqa: F811 - a fixture
    from ray_multicluster_scheduler.control_plane.store.state_folder import holder

    until(lambda: "address" in (holder(folder.state) or {}), 60)
    output = holder(folder.state)
    assert output is not None
    return str(output["address"])


def read(text: str) -> list[dict[str, Any]]:
    """Every line, as JSON: one that is none fails."""
    lines = [json.loads(line) for line in text.splitlines()]
    assert all({"time", "level", "logger", "message"} <= set(line) for line in lines)
    return lines
