"""An explanation as tables for notebooks. It says what the text for people says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from ray_multicluster_scheduler.common.tables import html_tables
from ray_multicluster_scheduler.common.tables.decision_html import candidates_html

_ATTEMPTS = ("attempt", "cluster", "sent", "started", "ended", "how", "why")
_STEPS = ("at", "state", "reason")


def explanation_html(story: Mapping[str, Any]) -> str:
    """What there is nothing to say about is left out."""
    return "".join(_tables(story))


def _tables(story: Mapping[str, Any]) -> Iterator[str]:
    queue, estimate, decision = story.get("queue") or {}, story.get("estimate") or {}, story.get("decision")
    kinds = ("id", "kind", "name", "owner", "state", "cluster", "attempt", "code", "sentence")
    facts = [(name, story.get(name)) for name in kinds]
    facts += [("repeats", story.get("repeats")), ("repeated by", ", ".join(story.get("repeated_by") or ()))]
    facts += [("goes on when", story.get("unblocked_by")), ("position in the queue", queue.get("position"))]
    yield html_tables.facts("", [*facts, ("may start", estimate.get("text"))])
    if decision:
        yield candidates_html(decision)
    if story.get("attempts"):
        yield html_tables.table("Attempts", _ATTEMPTS, [_attempt(one) for one in story["attempts"]])
    if story.get("history"):
        steps = [(_moment(one["at"]), one["state"], one["code"]) for one in story["history"]]
        yield html_tables.table("History", _STEPS, steps)


def _attempt(one: Mapping[str, Any]) -> tuple[object, ...]:
    moments = [_moment(one[key]) for key in ("sent_at", "started_at", "ended_at")]
    return (one["attempt"], one["cluster"], *moments, one["ended_as"] or "live", one["sentence"])


def _moment(at: float | None) -> str | None:
    """As the reader's clock shows it."""
    return None if at is None else datetime.fromtimestamp(at).astimezone().strftime("%H:%M:%S")
