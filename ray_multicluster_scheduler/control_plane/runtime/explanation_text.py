"""Explanation: the dict that `explain` returns, printed as text or HTML for people.

The functions here only format the data, which may also have been received as JSON from a service.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from ray_multicluster_scheduler.common.control_characters import escaped, escaped_lines
from ray_multicluster_scheduler.common.tables import (
    DrawTable,
    candidates_html,
    columns,
    decision_rows,
    decision_text,
    html_facts,
    html_table,
    pool_facts,
    pool_lines,
    rows_text,
)

_ATTEMPTS = ("ATTEMPT", "CLUSTER", "FENCE", "SENT", "STARTED", "ENDED", "HOW", "WHY")
_UNKNOWN = "–"
MARGIN = "  "
"""Before every line of a section."""


class Explanation(dict[str, Any]):
    """The result of `explain`: a dict that prints itself as text for people."""

    def __str__(self) -> str:
        return explanation_text(self)

    def _repr_html_(self) -> str:
        return explanation_html(self)


def explanation_text(explanation: Mapping[str, Any], draw: DrawTable = columns) -> str:
    """Sections of text; empty ones are left out. Tables are indented by MARGIN."""
    explanation = _shown(explanation)
    tables = (_decision(explanation, draw), _attempts(explanation, draw))
    parts = [_head(explanation), _queue(explanation), *tables, _environment(explanation), _history(explanation)]
    return "\n\n".join(part for part in parts if part)


def _shown(value: Any, key: object = None) -> Any:
    """A copy with control characters escaped; further lines of a sentence are indented."""
    if isinstance(value, str):
        return escaped_lines(value).replace("\n", "\n    ") if key == "sentence" else escaped(value)
    if isinstance(value, Mapping):
        return {name: _shown(one, name) for name, one in value.items()}
    return [_shown(one, key) for one in value] if isinstance(value, (list, tuple)) else value


def _head(explanation: Mapping[str, Any]) -> str:
    name = f" ({explanation['kind']} {explanation['name']})" if explanation.get("name") else ""
    where = f" on {explanation['cluster']}" if explanation.get("cluster") else ""
    lines = [
        f"{explanation['id']}{name} is {explanation['state']}{where}",
        f"  {explanation['code']}: {explanation['sentence']}",
    ]
    member = explanation.get("member")
    if member:
        what = f", {member['name']}" if member["name"] else ""
        lines.append(f"  {member['id']} is its member {member['index']}{what}; all members share one state")
    lines += [f"  {name}: {value}" for name, value in pool_facts(explanation)]
    if explanation.get("repeats"):
        lines.append(f"  repeats: {explanation['repeats']}")
    if explanation.get("repeated_by"):
        lines.append(f"  repeated by: {', '.join(explanation['repeated_by'])}")
    lines += [f"  note: {one}" for one in explanation.get("notes") or ()]
    if explanation.get("unblocked_by"):
        lines.append(f"  continues when: {explanation['unblocked_by']}")
    lines += [f"  {line}" for line in pool_lines(explanation.get("decision") or {})]
    estimate = explanation.get("estimate")
    if estimate:
        lines.append(f"  may start: {estimate['text']}")
    return "\n".join(lines)


def _queue(explanation: Mapping[str, Any]) -> str:
    queue = explanation.get("queue")
    if not queue:
        return ""
    lines = [f"Position {queue['position']} in the queue" + (", behind" if queue["ahead"] else "")]
    lines += [f"  {one['id']}: {one['why']}" for one in queue["ahead"]]
    more = queue["position"] - 1 - len(queue["ahead"])
    if queue["ahead"] and more > 0:
        lines.append(f"  and {more} more")
    return "\n".join(lines)


def _decision(explanation: Mapping[str, Any], draw: DrawTable) -> str:
    decision = explanation.get("decision")
    if not decision:
        return ""
    at, names = _moment(decision["at"]), decision.get("filters") or ()
    filters = f"\nFilters applied to each: {', '.join(names)}" if names else ""
    if decision["cluster"] is not None:
        return f"Decided at {at}\n{_indented(decision_text({**decision, 'unblocked_by': None}, draw) + filters)}"
    lines = decision_rows(decision)  # the head has the reason
    return f"Clusters, as of {at}\n{_indented(rows_text(lines, draw) + filters)}" if lines else ""


def _attempts(explanation: Mapping[str, Any], draw: DrawTable) -> str:
    rows = [
        (
            one["attempt"],
            one["cluster"] or _UNKNOWN,
            _UNKNOWN if one["fence"] is None else one["fence"],
            *(_moment(one[key]) for key in ("sent_at", "started_at", "ended_at")),
            one["ended_as"] or "live",
            one["sentence"].partition("\n")[0],
        )
        for one in explanation.get("attempts") or ()
    ]
    return f"Attempts\n{_indented(draw(_ATTEMPTS, rows))}" if rows else ""


def _environment(explanation: Mapping[str, Any]) -> str:
    lines = [f"{key}: {value}" for key, value in (explanation.get("runtime_env") or {}).items()]
    lines += [f"path {before} became {after}" for before, after in explanation.get("converted_paths") or ()]
    return _section("Environment", lines)


def _history(explanation: Mapping[str, Any]) -> str:
    steps = explanation.get("history") or ()
    return _section("History", [f"{_moment(step['at'])}  {step['state']}  {step['code']}" for step in steps])


def _section(title: str, lines: Iterable[str]) -> str:
    text = "\n".join(lines)
    return f"{title}\n{_indented(text)}" if text else ""


def _indented(text: str) -> str:
    return "\n".join(f"{MARGIN}{line}" for line in text.splitlines())


def _moment(at: float | None) -> str:
    return _time_of_day(at) or _UNKNOWN


def _time_of_day(at: float | None) -> str | None:
    """In the local time zone."""
    return None if at is None else datetime.fromtimestamp(at).astimezone().strftime("%H:%M:%S")


_HTML_ATTEMPTS = ("attempt", "cluster", "sent", "started", "ended", "how", "why")
_HTML_STEPS = ("at", "state", "reason")


def explanation_html(explanation: Mapping[str, Any]) -> str:
    """Tables for a notebook; empty ones are left out."""
    queue, estimate, decision = (
        explanation.get("queue") or {},
        explanation.get("estimate") or {},
        explanation.get("decision"),
    )
    kinds = ("id", "kind", "name", "owner", "state", "cluster", "attempt", "code", "sentence")
    facts = [(name, explanation.get(name)) for name in kinds]
    facts += pool_facts(explanation)
    facts += [("repeats", explanation.get("repeats")), ("repeated by", ", ".join(explanation.get("repeated_by") or ()))]
    facts += [("note", "; ".join(explanation.get("notes") or ()))]
    facts += [("continues when", explanation.get("unblocked_by")), ("position in the queue", queue.get("position"))]
    facts += [("quota", "; ".join(pool_lines(decision or {})))]
    tables = [html_facts("", [*facts, ("may start", estimate.get("text"))])]
    if decision:
        tables.append(candidates_html(decision))
    if explanation.get("attempts"):
        tables.append(html_table("Attempts", _HTML_ATTEMPTS, [_html_attempt(one) for one in explanation["attempts"]]))
    if explanation.get("history"):
        steps = [(_time_of_day(one["at"]), one["state"], one["code"]) for one in explanation["history"]]
        tables.append(html_table("History", _HTML_STEPS, steps))
    return "".join(tables)


def _html_attempt(one: Mapping[str, Any]) -> tuple[object, ...]:
    moments = [_time_of_day(one[key]) for key in ("sent_at", "started_at", "ended_at")]
    return (one["attempt"], one["cluster"], *moments, one["ended_as"] or "live", one["sentence"])
