"""EventFilter: which events somebody wants to hear of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.scheduler.scheduler_core.events.event import DURABLE, KINDS, Event

_OF_ITEMS = frozenset({"task", "actor", "job", "gang"})
_STATES = frozenset(str(state) for state in TaskState)
_MOST_WORDS = 1_000


@dataclass(frozen=True, slots=True)
class EventFilter:
    """An event has to meet all that is given, each with any of the words; what has no such field does not meet it.

    ``types`` are transition, decision, cluster, action (all of these if nothing is said) and telemetry.
    """

    types: frozenset[str] = frozenset(DURABLE)
    id: frozenset[str] = frozenset()
    owner: frozenset[str] = frozenset()
    cluster: frozenset[str] = frozenset()
    state: frozenset[str] = frozenset()
    kind: frozenset[str] = frozenset()

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> EventFilter:
        """Words, lists of them, or texts with commas between them, by field. Raises ConfigurationError."""
        known = [one.name for one in fields(cls)]
        for key in said:
            if key not in known:
                raise ConfigurationError(f"Events have no {key!r} to choose by.", next_step=f"use {', '.join(known)}")
        found = {key: _words(key, value) for key, value in said.items() if value is not None}
        for key, there_are in (("types", frozenset(KINDS)), ("state", _STATES), ("kind", _OF_ITEMS)):
            strange = sorted(found.get(key, frozenset()) - there_are)
            if strange:
                raise ConfigurationError(
                    f"{key} is {strange[0]!r} here.", next_step=f"use {', '.join(sorted(there_are))}"
                )
        return cls(**{key: words for key, words in found.items() if words})

    def holds(self, event: Event) -> bool:
        said = event.said
        return (
            event.kind in self.types
            and (not self.id or said.get("id") in self.id)
            and (not self.owner or said.get("owner") in self.owner)
            and (not self.cluster or said.get("cluster") in self.cluster)
            and (not self.state or said.get("state") in self.state)
            and (not self.kind or said.get("kind") in self.kind)
        )

    def found_by(self) -> list[tuple[str, str]]:
        """An event that it holds for has one of these fields with this word; empty: nothing so simple can be said."""
        for name in ("id", "owner", "cluster"):
            words: frozenset[str] = getattr(self, name)
            if words:
                return [(name, word) for word in words]
        return []


def _words(key: str, value: object) -> frozenset[str]:
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, Iterable):
        words = [words]
    found = list(words)
    if len(found) > _MOST_WORDS or not all(isinstance(one, str) for one in found):
        raise ConfigurationError(f"{key} is {str(value)[:100]!r}.", next_step="give a text, or at most 1,000 of them")
    return frozenset(str(one) for one in found if one)
