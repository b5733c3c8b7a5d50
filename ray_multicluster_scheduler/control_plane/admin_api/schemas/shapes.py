"""Words for JSON Schema, so that a description reads like what it describes."""

from __future__ import annotations

from typing import Any, TypeAlias

Schema: TypeAlias = dict[str, Any]


def text(says: str = "", **more: Any) -> Schema:
    return _said({"type": "string", **more}, says)


def number(says: str = "", **more: Any) -> Schema:
    return _said({"type": "number", **more}, says)


def whole(says: str = "", **more: Any) -> Schema:
    return _said({"type": "integer", **more}, says)


def flag(says: str = "", **more: Any) -> Schema:
    return _said({"type": "boolean", **more}, says)


def many(of: Schema, says: str = "", **more: Any) -> Schema:
    return _said({"type": "array", "items": of, **more}, says)


def by_name(of: Schema, says: str = "") -> Schema:
    """An object with names of its sender's own."""
    return _said({"type": "object", "additionalProperties": of}, says)


def thing(says: str = "", *, maybe: Schema | None = None, **fields: Schema) -> Schema:
    """An object that has all ``fields``, and of those that are ``maybe`` there some."""
    schema = {"type": "object", "properties": {**fields, **(maybe or {})}}
    return _said({**schema, "required": list(fields)} if fields else schema, says)


def or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def named(name: str) -> Schema:
    """One of the document's components."""
    return {"$ref": f"#/components/schemas/{name}"}


ANYTHING: Schema = {"type": "object"}


def _said(schema: Schema, says: str) -> Schema:
    return {**schema, "description": says} if says else schema
