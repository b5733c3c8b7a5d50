"""The vocabulary in which the fields of items are defined, each once, as annotations of the description classes.

``Annotated[Count, FieldSpec("…", ALL_KINDS, setting=True)]`` defines which values a field takes, what it means, and
which submit verbs take it as a keyword. Made from these annotations: the checks of keyword options
(app/client_api/options.py), the validation of REST bodies and their OpenAPI schemas
(control_plane/config/item_models.py), and the page docs/reference/items.md (scripts/docs_pages.py).
Standard library only: code inside clusters uses it, too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, Union, get_args, get_origin, get_type_hints

Kind = Literal["task", "actor", "job", "gang"]
KINDS: tuple[str, ...] = get_args(Kind)
RESERVED_IDS = frozenset({"all", "last"})
"""Commands use these for other items, so no item may have one as its id."""
MAX_PRIORITY = 1_000_000
"""The highest priority of an item; its negative is the lowest."""
MAX_LABELS = 64
MAX_LABEL_LENGTH = 256
MAX_SECONDS = 100 * 365 * 86_400.0
_LARGEST_INTEGER = 2**53
_LATEST_TIME = 1e11
_DEEPEST_OBJECT = 32


# ---- what a field is defined with


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Values:
    """The range of values that a field accepts. ``words`` completes the sentence "give it as …".

    ``accepts`` is a check beyond the bounds; ``json_schema`` expresses it for JSON Schema, as far as possible.
    ``lone_surrogates``: text that need not be valid Unicode, as paths of a file system.
    """

    words: str
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    min_length: int | None = None
    max_length: int | None = None
    accepts: Callable[[Any], bool] | None = None
    json_schema: Mapping[str, Any] | None = None
    lone_surrogates: bool = False


ALL_KINDS: tuple[str, ...] = KINDS
NOT_ACTORS: tuple[str, ...] = ("task", "job", "gang")


@dataclass(frozen=True, eq=False, slots=True)
class FieldSpec:
    """The meaning of a field, and who may set it.

    ``options``: the kinds whose submit verbs take it as a keyword argument, by the name ``keyword`` if that differs.
    ``setting``: the default is the setting of the same name. ``internal``: no request may set it.
    """

    doc: str
    options: tuple[str, ...] = ()
    keyword: str = ""
    setting: bool = False
    internal: bool = False


# ---- the types of fields


def _is_nested_at_most(value: object, levels: int = _DEEPEST_OBJECT) -> bool:
    """Deeper objects would overflow the stack of code that walks through them later."""
    level = [value]
    for _ in range(levels):
        level = [
            below
            for one in level
            if isinstance(one, (dict, list))
            for below in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return True
    return False


def _is_runtime_env(value: Mapping[str, Any]) -> bool:
    if not value:
        return True
    variables = value.get("env_vars", {})
    if not isinstance(variables, Mapping):
        return False
    texts = all(isinstance(one, str) for pair in variables.items() for one in pair)
    return texts and _is_nested_at_most(value)


def are_labels(value: Mapping[str, str]) -> bool:
    """Are there few enough, and are names and texts short enough?"""
    short = all(name and max(len(name), len(text)) <= MAX_LABEL_LENGTH for name, text in value.items())
    return short and len(value) <= MAX_LABELS


_TEXT_SCHEMA = {"type": "string"}
ID = Values(
    words="1 to 256 characters, no /, neither . nor .., which no address can name, nor all or last, which commands use",
    min_length=1,
    max_length=256,
    accepts=lambda value: "/" not in value and value not in {".", "..", *RESERVED_IDS},
    json_schema={"pattern": r"^[^/]*[^/.][^/]*$|^\.{3,}$", "not": {"enum": sorted(RESERVED_IDS)}},
)
TEXT = Values(words="text")
PATH = Values(words="text", lone_surrogates=True)
NAME = Values(words="a name", min_length=1)
COMMAND = Values(
    words="a shell command, without NUL",
    accepts=lambda value: bool(value.strip()) and "\0" not in value,
    json_schema={"pattern": r"^[^\u0000]*[^\s\u0000][^\u0000]*$"},
)
TEXTS = Values(words="a list of texts")
CLASS_NAMES = Values(words="a list of texts")
ITEM_IDS = Values(words="a list of texts")
TEXT_BY_NAME = Values(words="texts by name")
LABELS = Values(
    words=f"at most {MAX_LABELS} texts by name, with names of 1 to {MAX_LABEL_LENGTH} characters and texts of at most "
    f"{MAX_LABEL_LENGTH}",
    max_length=MAX_LABELS,
    accepts=are_labels,
    json_schema={
        "propertyNames": {"minLength": 1, "maxLength": MAX_LABEL_LENGTH},
        "additionalProperties": {**_TEXT_SCHEMA, "maxLength": MAX_LABEL_LENGTH},
    },
)
FLAG = Values(words="true or false")
COUNT = Values(words=f"a whole number from 0 to {_LARGEST_INTEGER}", ge=0, le=_LARGEST_INTEGER)
CONCURRENCY = Values(words=f"a whole number from 1 to {_LARGEST_INTEGER}", ge=1, le=_LARGEST_INTEGER)
RESTARTS = Values(words=f"a whole number from -1 to {_LARGEST_INTEGER}", ge=-1, le=_LARGEST_INTEGER)
PRIORITY = Values(words=f"a number from {-MAX_PRIORITY} to {MAX_PRIORITY}", ge=-MAX_PRIORITY, le=MAX_PRIORITY)
SECONDS = Values(words="seconds above 0", gt=0, lt=MAX_SECONDS)
TIME = Values(words="seconds since 1970", ge=0, lt=_LATEST_TIME)
AMOUNT = Values(words="an amount", ge=0, lt=float(_LARGEST_INTEGER**2))
RESOURCES = Values(words='amounts by name, such as {"CPU": 1}')
RUNTIME_ENV = Values(
    words=f"a JSON object of at most {_DEEPEST_OBJECT} levels, with texts as env_vars",
    accepts=_is_runtime_env,
    json_schema={"properties": {"env_vars": {"type": "object", "additionalProperties": _TEXT_SCHEMA}}},
)

Id: TypeAlias = Annotated[str, ID]
Text: TypeAlias = Annotated[str, TEXT]
Name: TypeAlias = Annotated[str, NAME]
Command: TypeAlias = Annotated[str, COMMAND]
Texts: TypeAlias = Annotated[tuple[str, ...], TEXTS]
Paths: TypeAlias = Annotated[tuple[Annotated[str, PATH], ...], TEXTS]
ClassNames: TypeAlias = Annotated[tuple[str, ...], CLASS_NAMES]
ItemIds: TypeAlias = Annotated[tuple[str, ...], ITEM_IDS]
TextByName: TypeAlias = Annotated[Mapping[str, str], TEXT_BY_NAME]
Labels: TypeAlias = Annotated[Mapping[str, str], LABELS]
Flag: TypeAlias = Annotated[bool, FLAG]
Count: TypeAlias = Annotated[int, COUNT]
Concurrency: TypeAlias = Annotated[int, CONCURRENCY]
Restarts: TypeAlias = Annotated[int, RESTARTS]
Priority: TypeAlias = Annotated[float, PRIORITY]
Seconds: TypeAlias = Annotated[float, SECONDS]
Time: TypeAlias = Annotated[float, TIME]
ResourceAmounts: TypeAlias = Annotated[Mapping[str, Annotated[float, AMOUNT]], RESOURCES]
RuntimeEnv: TypeAlias = Annotated[Mapping[str, Any], RUNTIME_ENV]


# ---- reading the definitions


class ItemField(NamedTuple):
    """One field of a description class: ``hint`` is its annotation, ``type`` the same without marks and without None.
    ``values`` is None for a choice and for a nested description."""

    name: str
    hint: Any
    type: Any
    default: Any
    values: Values | None
    nullable: bool
    spec: FieldSpec

    @property
    def required(self) -> bool:
        return self.default is MISSING

    @property
    def words(self) -> str:
        """Completes the sentence "give it as …"."""
        if self.spec.internal:
            return "null; only the service sets it"
        if self.values is not None:
            words = self.values.words
        elif get_origin(self.type) is Literal:
            words = f"one of {', '.join(get_args(self.type))}"
        else:
            words = "a list of members" if get_origin(self.type) is tuple else "a JSON object"
        return f"{words}, or null" if self.nullable else words


@functools.cache
def fields_of(description: type) -> Mapping[str, ItemField]:
    """The fields of a description class by name, in their order."""
    hints = get_type_hints(description, include_extras=True)
    made = {}
    for one in fields(description):
        bare, marks, nullable = _parts_of(hints[one.name])
        values = next((mark for mark in marks if isinstance(mark, Values)), None)
        spec = next(mark for mark in marks if isinstance(mark, FieldSpec))
        default = one.default if one.default_factory is MISSING else one.default_factory()
        made[one.name] = ItemField(one.name, hints[one.name], bare, default, values, nullable, spec)
    return made


def _parts_of(hint: Any) -> tuple[Any, list[Any], bool]:
    """The type itself, all marks around it, and whether it may be None."""
    marks: list[Any] = []
    nullable = False
    while True:
        if get_origin(hint) is Annotated:
            hint, *found = get_args(hint)
            marks += found
        elif get_origin(hint) in (Union, UnionType):
            (hint,) = (part for part in get_args(hint) if part is not NoneType)
            nullable = True
        else:
            return hint, marks, nullable
