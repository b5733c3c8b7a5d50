"""ApiModel: base class of the models of requests and answers; generates their JSON Schemas and examples."""

from __future__ import annotations

from enum import StrEnum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from ray_multicluster_scheduler.control_plane.config.item_models import ITEM_MODELS

Schema: TypeAlias = dict[str, Any]
Base64: TypeAlias = Annotated[str, Field(json_schema_extra={"contentEncoding": "base64"})]
REFERENCE = "#/components/schemas/{model}"
ID = "nightly-2026-11-15"
PAYLOAD = b"hello"
"""What the examples upload as a payload."""
_EXAMPLES: dict[str, Any] = {
    "id": ID,
    "kind": "job",
    "name": "nightly",
    "owner": "ann",
    "user": "alice",
    "state": "RUNNING",
    "cluster": "mac",
    "submitted_at": 1794700790.0,
    "started_at": 1794700800.0,
    "finished_at": None,
    "changed": True,
    "after": None,
    "host": "127.0.0.1",
    "port": 9001,
    "model_name": "ocr",
    "task_id": "page-1",
}
"""Examples of fields with the same meaning in every model."""


class ApiModel(BaseModel):
    """A JSON object of a request or an answer."""

    model_config = ConfigDict(defer_build=True)


def required(doc: str = "", example: Any = ..., **bounds: Any) -> Any:
    """A field that is always there."""
    return _field({}, doc, example, bounds)


def optional(doc: str = "", example: Any = ..., **bounds: Any) -> Any:
    """A field that may be absent."""
    return _field({"default": None}, doc, example, bounds)


def _field(made: dict[str, Any], doc: str, example: Any, bounds: dict[str, Any]) -> Any:
    if doc:
        made["description"] = doc
    if example is not ...:
        made["examples"] = [example]
    return Field(**made, **bounds)


def example_of(model: type[BaseModel]) -> dict[str, Any]:
    """An example object: the required fields of the model, and optional ones that have an example."""
    made: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        key = field.alias or name
        if field.examples:
            made[key] = field.examples[0]
        elif field.is_required():
            made[key] = _example_of_type(field.annotation, name)
    return made


def _example_of_type(hint: Any, name: str = "") -> Any:
    origin, parts = get_origin(hint), get_args(hint)
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return example_of(hint)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return str(next(iter(hint)))
    if origin is Literal:
        return parts[0]
    if origin is list:
        return [] if parts[0] is str else [_example_of_type(parts[0])]
    if name in _EXAMPLES:
        return _EXAMPLES[name]
    if origin in (Union, UnionType):
        return None if NoneType in parts else _example_of_type(parts[0])
    return {str: "", int: 1, float: 1.0, bool: True}.get(hint, {})


class _PlainSchema(GenerateJsonSchema):
    """JSON Schema without titles, which repeat the names, and without null as a default."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def default_schema(self, schema: Any) -> Schema:
        found = super().default_schema(schema)
        if found.get("default", 0) is None:
            del found["default"]
        return found


def components() -> dict[str, Schema]:
    """The schemas of the item models and of all subclasses of ApiModel, by name."""
    models: list[tuple[type[BaseModel], Literal["validation"]]] = [
        (one, "validation") for one in (*ITEM_MODELS.values(), *_subclasses(ApiModel))
    ]
    _, made = models_json_schema(models, ref_template=REFERENCE, schema_generator=_PlainSchema)
    found: dict[str, Schema] = made["$defs"]
    for schema in found.values():
        schema.pop("title", None)
    return found


def _subclasses(model: type[BaseModel]) -> list[type[BaseModel]]:
    return [one for below in model.__subclasses__() for one in (below, *_subclasses(below))]
