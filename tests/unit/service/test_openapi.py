"""The document of all routes: it is complete, valid, and what it shows works."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import fields
from typing import Any
from urllib.parse import urlencode

import jsonschema_rs
import pytest
from fastapi import APIRouter
from schemathesis.specs.openapi import definitions

from ray_multicluster_scheduler.common.model import (
    ActorDescription,
    GangDescription,
    JobDescription,
    MemberDescription,
    TaskDescription,
)
from ray_multicluster_scheduler.control_plane.admin_api.access.access import Access
from ray_multicluster_scheduler.control_plane.admin_api.http import app
from ray_multicluster_scheduler.control_plane.admin_api.schemas.api_model import ID, PAYLOAD
from ray_multicluster_scheduler.control_plane.admin_api.schemas.items import NIGHTLY
from ray_multicluster_scheduler.control_plane.admin_api.schemas.route_description import JSON, PROBLEM_JSON
from tests.unit.client_api.control_plane import until
from tests.unit.service.http_service import HttpService
from tests.unit.service.service_plane import a_task
from tests.unit.service.test_bad_bodies import FIELDS

NOT_TRIED = {
    "/api/v1/actor": "there is no actor here",
    "/api/v1/calls": "there is no actor here",
    "/api/v1/calls/{call_id}/explain": "there is no call here",
    "/api/v1/calls/{call_id}/result": "there is no call here",
    "/api/v1/items/{item_id}/result": "it is not over",
    "/api/v1/events": "it does not end; test_events.py tries it",
    "/api/v1/tokens": "nobody is asked for a token here; test_tokens.py tries it",
    **{
        f"/api/v1/serving{path}": "there is no such task or model; test_serving_routes.py tries it"
        for path in (
            "/task/query",
            "/v1/models/{model_id}",
            "/task/explain",
            "/result/submit",
            "/notify/task_complete",
            "/v1/{path}",
            "/deployments",
            "/deployments/{name}",
        )
    },
    "/api/v1/items/{item_id}/logs": "a job prints on its cluster, which nobody plays here",
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpService]:
    with HttpService(tmp_path_factory.mktemp("openapi") / "state", submission_interval_s=0) as service:
        yield service


@pytest.fixture(scope="module")
def document(service: HttpService) -> dict[str, Any]:
    found: dict[str, Any] = service.get("/api/v1/openapi.json")
    return found


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [(verb, path, one) for path, verbs in document["paths"].items() for verb, one in verbs.items()]


def contents(operation: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """All that is sent and answered, with its Content-Type."""
    yield from operation.get("requestBody", {}).get("content", {}).items()
    for answer in operation["responses"].values():
        yield from answer.get("content", {}).items()


def complaints(document: dict[str, Any], schema: dict[str, Any], value: object) -> list[str]:
    validator = jsonschema_rs.Draft202012Validator({**schema, "components": document["components"]})
    return [f"{'.'.join(map(str, one.instance_path))}: {one.message}" for one in validator.iter_errors(value)]


def test_it_is_valid(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1.")
    assert [one.message for one in definitions.OPENAPI_31_VALIDATOR.iter_errors(document)] == []


def test_it_says_how_to_be_let_in(document: dict[str, Any]) -> None:
    assert {one["type"] for one in document["components"]["securitySchemes"].values()} == {"http", "apiKey"}
    for path, verb, operation in operations(document):
        open_to_all = operation["x-rule"] == "open"
        assert operation["security"] == ([] if open_to_all else [{"bearer": []}, {"session": []}]), (verb, path)
    assert "/api/v1/ws" in document["info"]["description"]


def test_every_route_is_described(document: dict[str, Any]) -> None:
    for verb, path, operation in operations(document):
        assert operation["summary"], path
        assert operation["description"], path
        assert operation["x-rule"], path
        for status in ("4XX", "5XX"):
            problem = operation["responses"][status]["content"][PROBLEM_JSON]
            assert "/v1/{path}" in path or problem["schema"]["$ref"].endswith("/Problem"), path
        assert operation["responses"]["200"]["content"], path
        for _, output in contents(operation):
            assert output["schema"], (verb, path)
            assert output["examples"], (verb, path)
        for parameter in operation.get("parameters", ()):
            assert parameter["description"], (path, parameter["name"])
            assert "example" in parameter, (path, parameter["name"])


def test_each_route_that_reads_a_body_declares_it(service: HttpService, document: dict[str, Any]) -> None:
    assert len(service.app.documented_routes) > 30
    for route in service.app.documented_routes:
        reads = any(
            word in inspect.getsource(route.endpoint) for word in ("json_of(", "bytes_of(", "body: models.", "def v1(")
        )
        for verb in route.methods:
            operation = document["paths"][route.path_format][verb.lower()]
            assert ("requestBody" in operation) == reads, route.path


def test_a_route_without_a_rule_is_not_served(
    service: HttpService, document: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {route.path_format for route in service.app.documented_routes} == set(document["paths"])
    router = APIRouter()
    router.add_api_route("/forgotten", lambda: None)
    monkeypatch.setattr(app, "ROUTERS", (*app.ROUTERS, router))
    with pytest.raises(RuntimeError, match="declare no rule: /forgotten"):
        app.create_app(service.plane.runtime, Access(None))


def test_every_example_is_what_its_schema_says(document: dict[str, Any]) -> None:
    for verb, path, operation in operations(document):
        for media, output in contents(operation):
            for name, example in output["examples"].items():
                if media in (JSON, PROBLEM_JSON):
                    assert complaints(document, output["schema"], example["value"]) == [], (verb, path, name)


# ---- what is reported of an item


def test_a_task_has_the_fields_that_are_checked_and_that_there_are(document: dict[str, Any]) -> None:
    parts = (TaskDescription, JobDescription, ActorDescription, GangDescription, MemberDescription)
    for description in parts:
        schema = document["components"]["schemas"][description.__name__.removesuffix("Description")]
        assert list(schema["properties"]) == [one.name for one in fields(description)]
        assert not schema["additionalProperties"]


@pytest.mark.parametrize("key", sorted(FIELDS))
def test_the_schema_refuses_what_is_refused(document: dict[str, Any], key: str) -> None:
    """As far as JSON can say it, and JSON Schema can: that text is UTF-8, and numbers are finite, it cannot."""
    schema = document["components"]["schemas"]["Task"]["properties"][key]
    for value in FIELDS[key]:
        output = ascii(value)
        if any(word in output for word in ("nan", "inf", "udce9")) or len(output) > 300 or value in ({}, []):
            continue
        assert complaints(document, schema, value), (key, value)


def test_the_schema_takes_what_is_taken(document: dict[str, Any]) -> None:
    for task in (a_task("t", 1).to_dict(), NIGHTLY):
        plain = {key: list(value) if isinstance(value, tuple) else value for key, value in task.items()}
        assert complaints(document, document["components"]["schemas"]["Task"], plain) == []


# ---- it works


def filled(path: str, operation: dict[str, Any]) -> str:
    """The path with the examples of its parameters, and the query with those that are needed."""
    query = {}
    for parameter in operation.get("parameters", ()):
        if parameter["in"] == "path":
            path = path.replace(f"{{{parameter['name']}}}", str(parameter["example"]))
        elif parameter["in"] == "query" and parameter["name"] not in ("after", "cursor", "follow", "stream"):
            value = parameter["example"]
            query[parameter["name"]] = str(value).lower() if isinstance(value, bool) else value
    return f"{path}?{urlencode(query)}" if query else path


def body_of(operation: dict[str, Any], name: str) -> dict[str, Any]:
    return dict(operation["requestBody"]["content"][JSON]["examples"][name]["value"])


def check(document: dict[str, Any], path: str, operation: dict[str, Any], status: int, answer: object) -> None:
    assert status in (200, 204), (path, answer)
    if status == 200 and (output := operation["responses"]["200"]["content"].get(JSON)):
        assert complaints(document, output["schema"], answer) == [], (path, answer)


def test_every_example_works(service: HttpService, document: dict[str, Any]) -> None:
    """In an order in which it can: the items first, then what is asked of them, then their end."""
    paths = document["paths"]
    for path in ("/api/v1/items", "/api/v1/items/batch"):
        for example in paths[path]["post"]["requestBody"]["content"][JSON]["examples"].values():
            status, answer = service.ask("POST", path, example["value"])
            check(document, path, paths[path]["post"], status, answer)
    service.submit("anns", 0, owner="ann")
    digest = "/api/v1/blobs/{digest}"
    status, answer = service.ask("PUT", filled(digest, paths[digest]["put"]), data=PAYLOAD)
    check(document, digest, paths[digest]["put"], status, answer)
    for path in ("/api/v1/pools", "/api/v1/pools/{name}"):
        put = paths[path]["put"]
        status, answer = service.ask("PUT", filled(path, put), body_of(put, "example"))
        check(document, path, put, status, answer)
    gets = [(path, verbs["get"]) for path, verbs in paths.items() if "get" in verbs and path not in NOT_TRIED]
    assert len(gets) > 15
    for path, operation in gets:
        status, answer = service.ask("GET", filled(path, operation))
        check(document, path, operation, status, answer)
    posts = [(path, verbs["post"]) for path, verbs in paths.items() if "post" in verbs and path not in NOT_TRIED]
    last = ("cancel", "retry", "declare-dead")
    for path, operation in sorted(posts, key=lambda one: next((at for at, x in enumerate(last) if x in one[0]), -1)):
        examples = operation.get("requestBody", {}).get("content", {}).get(JSON, {}).get("examples", {"none": {}})
        for example in examples.values():
            output = dict(example.get("value", {}))
            if path.endswith("declare-dead"):
                output["force"] = True  # it is alive here
            status, answer = service.ask("POST", filled(path, operation), output)
            check(document, path, operation, status, answer)
        if path.endswith("{item_id}/cancel"):
            until(lambda: service.get(f"/api/v1/items/{ID}")["state"] == "CANCELLED")
    assert service.get(f"/api/v1/items/{ID}")["state"] == "CANCELLED"
