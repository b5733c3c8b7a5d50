"""Is what a command prints as json what the service's OpenAPI document says? Only times are others: ISO 8601."""

from __future__ import annotations

from typing import Any

import jsonschema_rs

from tests.unit.service.http_service import HttpService

_ISO = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$"}


def schema_violations(service: HttpService, path: str, value: object, *inside: str, method: str = "get") -> list[str]:
    """About what stands there instead of the answer of this route, or of a part ``inside`` it."""
    document = with_iso_times(service.get("/api/v1/openapi.json"))
    schema = document["paths"][path][method]["responses"]["200"]["content"]["application/json"]["schema"]
    for word in inside:
        while "$ref" in schema:
            schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        schema = schema["properties"][word]
    validator = jsonschema_rs.Draft202012Validator({**schema, "components": document["components"]})
    return [f"{'.'.join(map(str, one.instance_path))}: {one.message}" for one in validator.iter_errors(value)]


def with_iso_times(schema: Any) -> Any:
    """The same document, in which moments are text."""
    if isinstance(schema, list):
        return [with_iso_times(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    reported = {key: with_iso_times(one) for key, one in schema.items()}
    properties = reported.get("properties")
    if isinstance(properties, dict):
        for name, one in properties.items():
            if name in ("at", "since") or name.endswith(("_at", "_since", "_until")):
                properties[name] = _iso(one)
    return reported


def _iso(schema: dict[str, Any]) -> dict[str, Any]:
    if schema.get("type") == "number":
        return _ISO
    if "anyOf" in schema:
        return {**schema, "anyOf": [_iso(one) for one in schema["anyOf"]]}
    return schema
