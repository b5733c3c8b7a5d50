"""Pydantic models of items in requests, generated from the annotations of the description classes.

``item_from`` validates an item of a REST body and makes its TaskDescription; ``ITEM_MODELS`` are the components of the
OpenAPI document. The definitions are in common/model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    InstanceOf,
    TypeAdapter,
    ValidationError,
    create_model,
)

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model import (
    ActorDescription,
    GangDescription,
    JobDescription,
    MemberDescription,
    TaskDescription,
)
from ray_multicluster_scheduler.common.model.item_fields import Id, Values, fields_of

_BOUNDS = ("ge", "gt", "le", "lt", "min_length", "max_length")
_PRIVATE = frozenset({"runtime_env", "job", "entrypoint", "metadata"})
"""Fields that may hold secrets: their values are not repeated in errors."""
_NAMES: Mapping[type, tuple[str, str]] = {
    TaskDescription: ("Task", "A task"),
    JobDescription: ("Job", "job"),
    ActorDescription: ("Actor", "actor"),
    GangDescription: ("Gang", "gang"),
    MemberDescription: ("Member", "A member"),
}
"""Of each description: its name in the OpenAPI document, and in errors."""
_MODELS: dict[type, type[BaseModel]] = {}


def _model_of(description: type) -> type[BaseModel]:
    """The model of a description class: the same fields, as JSON has them."""
    if description not in _MODELS:
        made: dict[str, Any] = {}
        for one in fields_of(description).values():
            kind = None if one.spec.internal else _type_of(one.hint)
            given: dict[str, Any] = {"description": f"{one.spec.doc} Given as {one.words}."}
            if one.default is not MISSING or one.name in ("id", "name"):  # made where none is given
                given["default"] = None
            if isinstance(one.default, (int, float, str)):
                given["json_schema_extra"] = {"default": one.default}
            made[one.name] = (kind, Field(**given))
        config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
        _MODELS[description] = create_model(_NAMES[description][0], __config__=config, **made)
    return _MODELS[description]


def _type_of(hint: Any) -> Any:
    """An annotation of ours as one of pydantic's."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        values = [mark for mark in parts[1:] if isinstance(mark, Values)]
        if any(one.lone_surrogates for one in values):
            return InstanceOf[str]
        marks = [mark for one in values for mark in _marks_of(one)]
        return Annotated[_type_of(parts[0]), *marks] if marks else _type_of(parts[0])
    if origin is tuple:
        return list[_type_of(parts[0])]  # type: ignore[misc]  # a type computed at run time
    if origin is Mapping:
        return dict[str, _type_of(parts[1])]  # type: ignore[misc]  # likewise
    if is_dataclass(hint):
        return _model_of(hint)  # type: ignore[arg-type]  # a class
    if parts and origin is not Literal:
        return Union[tuple(_type_of(part) for part in parts)]  # noqa: UP007 - made at run time
    return hint


def _marks_of(values: Values) -> list[Any]:
    given: dict[str, Any] = {name: getattr(values, name) for name in _BOUNDS if getattr(values, name) is not None}
    if values.json_schema is not None:
        given["json_schema_extra"] = dict(values.json_schema)
    marks: list[Any] = [Field(**given)] if given else []
    if values.accepts is not None:
        marks.append(AfterValidator(_checked(values)))
    return marks


def _checked(values: Values) -> Any:
    accepts = values.accepts
    assert accepts is not None

    def check(value: Any) -> Any:
        if not accepts(value):
            raise ValueError(values.words)
        return value

    return check


if TYPE_CHECKING:
    TaskModel = BaseModel
else:
    TaskModel = _model_of(TaskDescription)
ITEM_MODELS: Mapping[str, type[BaseModel]] = {one.__name__: one for one in _MODELS.values()}
_ID: TypeAdapter[str] = TypeAdapter(_type_of(Id), config=ConfigDict(strict=True))


def item_from(data: object) -> TaskDescription:
    """An item as a request describes it. Raises ConfigurationError for a field that is unknown, wrong or missing."""
    try:
        TaskModel.__pydantic_validator__.validate_python(data)
    except ValidationError as error:
        raise _refused(error, data) from None
    assert isinstance(data, Mapping)
    try:
        return TaskDescription.from_dict({"name": _default_name(data), **data})
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise ConfigurationError(f"The task cannot be read: {error}.", next_step="see docs/service.md") from error


def _default_name(data: Mapping[str, Any]) -> str:
    """The command of a job, as in Python; of other items the kind, so that a repeated submission has the same."""
    return str((data.get("job") or {}).get("entrypoint") or data["kind"])


def is_id(value: object) -> bool:
    """May an item have this id?"""
    try:
        _ID.validate_python(value)
    except ValidationError:
        return False
    return True


def _refused(error: ValidationError, data: object) -> ConfigurationError:
    """The first mistake: unknown fields before wrong values before missing fields."""
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    first = min(problems, key=lambda one: {"extra_forbidden": 0, "missing": 2}.get(one["type"], 1))
    description: Any = TaskDescription
    field, container, value = None, data, data
    for step in first["loc"]:
        if description is None:
            break  # what follows is within the value of the field
        if isinstance(step, int):
            container = value[step]  # type: ignore[index]  # a list of descriptions
            continue
        fields, what = fields_of(description), _NAMES[description][1]
        if step not in fields:
            return ConfigurationError(f"{what} has no field {step[:100]!r}.", next_step=f"use {', '.join(fields)}")
        field = fields[step]
        if step not in container:  # type: ignore[operator]  # a dict
            return _incomplete(what, fields, first["loc"][:-1], problems)
        container = value = container[step]  # type: ignore[index]  # the dict of the check above
        description = next((one for one in (field.type, *get_args(field.type)) if one in _NAMES), None)
    if field is None:
        return ConfigurationError(f"A task is {_shown(data)}.", next_step="send a JSON object")
    shown = f"a {type(value).__name__}" if field.name in _PRIVATE else _shown(value)
    return ConfigurationError(f"{field.name} is {shown}.", next_step=f"give {field.name} as {field.words}")


def _incomplete(
    what: str, fields: Mapping[str, Any], where: tuple[Any, ...], problems: list[Any]
) -> ConfigurationError:
    """The error for the fields that are missing in one description: all of them."""
    missing = [one["loc"][-1] for one in problems if one["type"] == "missing" and one["loc"][:-1] == where]
    return ConfigurationError(
        f"{what} has no {' and no '.join(missing)}.",
        next_step=f"give {'; '.join(f'{name} as {fields[name].words}' for name in missing)}",
    )


def _shown(value: object) -> str:
    return json.dumps(value, default=str)[:100]
