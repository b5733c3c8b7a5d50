"""Event: one event in the live stream of a control plane; EventFilter: which events a subscriber gets."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.control_plane.store.records import EventRecord, OperationRecord, Step, StoredDecision
from ray_multicluster_scheduler.scheduler.lifecycle import codes

Kind = Literal["transition", "decision", "cluster", "action", "pool_changed", "telemetry", "serving", "reset"]
DURABLE: tuple[Kind, ...] = ("transition", "decision", "cluster", "action", "pool_changed")
"""Stored and numbered, so that a subscriber can read past ones."""
TELEMETRY: Kind = "telemetry"
SERVING: Kind = "serving"
"""A task of serving changed. Not stored: numbered apart from the others for readers of nothing else, so that these can
replay the newest; without a number for readers of other kinds, too."""
KINDS: tuple[Kind, ...] = (*DURABLE, TELEMETRY, SERVING)
CLUSTER, ACTION, POOL_CHANGED = "cluster", "action", "pool_changed"
"""Values of ``what`` in operation records; each is an event kind of the same name."""
TOPICS = ("preempted", "resumed")
"""Words for some transitions, which a filter accepts as types."""
_ITEM_KINDS = frozenset({"task", "actor", "job", "gang"})
_STATES = frozenset(str(state) for state in TaskState)
_TOPICS = {
    (TaskState.PREEMPTING, codes.PREEMPTED): "preempted",
    (TaskState.RUNNING, codes.RESUMED): "resumed",
}
_MAX_WORDS = 1_000


class Event:
    """``number`` counts durable events without gaps, and those of serving apart from them; telemetry has none."""

    def __init__(
        self, kind: Kind, values: Mapping[str, Any], number: int | None = None, topic: str | None = None
    ) -> None:
        self.kind, self.number, self.topic, self._values = kind, number, topic, values
        self.fields: dict[str, Any] = (
            {"type": kind, **values} if number is None else {"number": number, "type": kind, **values}
        )

    @functools.cached_property
    def unnumbered(self) -> Event:
        """The same event without its number."""
        return Event(self.kind, self._values)

    @functools.cached_property
    def text(self) -> str:
        """The event as JSON, encoded once for all subscribers."""
        return json.dumps(self.fields, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class EventFilter:
    """An event matches if each given field has one of the given values; an event without that field does not match.

    ``types`` are transition, decision, cluster, action, pool_changed (these five by default), telemetry and
    serving; preempted and resumed are the transitions of items that give way, and that run again afterwards.
    """

    types: frozenset[str] = frozenset(DURABLE)
    id: frozenset[str] = frozenset()
    owner: frozenset[str] = frozenset()
    cluster: frozenset[str] = frozenset()
    state: frozenset[str] = frozenset()
    kind: frozenset[str] = frozenset()
    model: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> EventFilter:
        """By field: a value, a list, or values separated by commas. Raises ConfigurationError."""
        known = [one.name for one in fields(cls)]
        for key in given:
            if key not in known:
                raise ConfigurationError(f"Events cannot be filtered by {key!r}.", next_step=f"use {', '.join(known)}")
        found = {key: _filter_values(key, value) for key, value in given.items() if value is not None}
        for key, allowed in (("types", frozenset((*KINDS, *TOPICS))), ("state", _STATES), ("kind", _ITEM_KINDS)):
            unknown = sorted(found.get(key, frozenset()) - allowed)
            if unknown:
                raise ConfigurationError(
                    f"{key} is {unknown[0]!r} here.", next_step=f"use {', '.join(sorted(allowed))}"
                )
        return cls(**{key: words for key, words in found.items() if words})

    def matches(self, event: Event) -> bool:
        values = event.fields
        return (
            (event.kind in self.types or event.topic in self.types)
            and (not self.id or values.get("id") in self.id)
            and (not self.owner or values.get("owner") in self.owner)
            and (not self.cluster or values.get("cluster") in self.cluster)
            and (not self.state or values.get("state") in self.state)
            and (not self.kind or values.get("kind") in self.kind)
            and (not self.model or values.get("model") in self.model)
        )

    @property
    def serving_only(self) -> bool:
        """Whether its events are numbered as those of serving."""
        return self.types == {SERVING}

    def index_keys(self) -> list[tuple[str, str]]:
        """Field and value pairs of which each matching event has at least one; empty if there are none."""
        for name in ("id", "owner", "cluster"):
            words: frozenset[str] = getattr(self, name)
            if words:
                return [(name, word) for word in words]
        return []


def _filter_values(key: str, value: object) -> frozenset[str]:
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, Iterable):
        words = [words]
    found = list(words)
    if len(found) > _MAX_WORDS or not all(isinstance(one, str) for one in found):
        raise ConfigurationError(f"{key} is {str(value)[:100]!r}.", next_step="give a text, or at most 1,000 of them")
    return frozenset(str(one) for one in found if one)


def event_of(record: EventRecord) -> Event:
    """The published form of a record of the store."""
    values: dict[str, Any]
    item = {"kind": record.kind, "name": record.name, "owner": record.owner}
    match record.entry:
        case Step() as step:
            values = {
                "at": step.at,
                "id": step.item_id,
                **item,
                "step": step.number,
                "state": str(step.state),
                "attempt": step.attempt,
                "cluster": step.cluster,
                "code": step.code,
                "sentence": step.sentence,
            }
            return Event("transition", values, record.number, _TOPICS.get((step.state, step.code)))
        case StoredDecision() as decision:
            document = json.loads(decision.document)
            values = {
                "at": decision.at,
                "id": decision.item_id,
                **item,
                "attempt": decision.attempt,
                "cluster": decision.cluster,
                "code": document.get("code"),
                "sentence": document.get("sentence"),
                "candidates": [_candidate(row) for row in document.get("rows", ())],
            }
            return Event("decision", values, record.number)
        case OperationRecord() as operation:
            values = {"at": operation.at, **json.loads(operation.document)}
            if operation.what == CLUSTER:
                return Event("cluster", {**values, "cluster": operation.subject}, record.number)
            if operation.what == POOL_CHANGED:
                return Event("pool_changed", {**values, "pool": operation.subject}, record.number)
            return Event("action", {**values, "user": operation.user, "subject": operation.subject}, record.number)


def _candidate(row: list[Any]) -> dict[str, Any]:
    cluster, rejections, _, scores, _, total, *_ = row
    return {
        "cluster": cluster,
        "rejections": [{"code": code, "sentence": sentence} for code, sentence, *_ in rejections],
        "scores": scores,
        "total": total,
    }


def reset_event(number: int) -> Event:
    """For a subscriber that requests events after a number that does not exist yet."""
    sentence = "The requested number is not one of this control plane. The stream continues from here."
    return Event("reset", {"sentence": sentence}, number)


def missed_event(numbers: tuple[int, int]) -> dict[str, Any]:
    """For a subscriber that was too slow: the first and last number of the events that it missed."""
    return {
        "type": "missed",
        "from": numbers[0],
        "to": numbers[1],
        "sentence": "These came faster than they were read. Request them again with since or Last-Event-ID.",
    }
