"""ClusterRow(s), the results of list_clusters and cluster_info, and the phrases that commands print of such a row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ray_multicluster_scheduler.common.tables import html_facts, html_table
from ray_multicluster_scheduler.scheduler.policy.reasons import STALE_SNAPSHOT

_COLUMNS = ("cluster", "state", "why", "items", "nodes", "free", "tags", "Ray")


class ClusterRow(dict[str, Any]):
    """The row of one cluster."""

    def _repr_html_(self) -> str:
        shown = [(name, _text(value)) for name, value in self.items() if name != "name"]
        return html_facts(f"cluster {self.get('name')}", shown)


class ClusterRows(list[dict[str, Any]]):
    """The rows of all clusters."""

    def __init__(self, rows: Iterable[Mapping[str, Any]]) -> None:
        super().__init__(ClusterRow(row) for row in rows)

    def __reduce__(self) -> tuple[type[list[Any]], tuple[list[Any]]]:
        """Pickle as plain data, readable without this package."""
        return list, ([dict(row) for row in self],)

    def _repr_html_(self) -> str:
        return html_table("", _COLUMNS, [_line(row) for row in self])


def is_of_now(row: Mapping[str, Any]) -> bool:
    """Are the node figures current? Also true for the last snapshot of an idle cluster, which is polled rarely."""
    return row.get("current") is not False or row.get("state") == STALE_SNAPSHOT


def pause_text(row: Mapping[str, Any]) -> str:
    """Phrase that the queue is paused, and why; empty if it is not."""
    if row.get("paused") is None:
        return ""
    reason = str(row["paused"]).partition("\n")[0]
    return f"its queue is paused{f': {reason}' if reason else ''}"


def cordon_text(row: Mapping[str, Any]) -> str:
    """Phrase why it is cordoned; empty if it is not, or no reason was given."""
    reason = str(row.get("cordon_reason") or "").partition("\n")[0]
    return f"it is cordoned: {reason}" if reason else ""


def reason_text(row: Mapping[str, Any]) -> str:
    """Phrase why a cluster receives no work: the reason of a cordon, a paused queue, and its problems."""
    return "; ".join(filter(None, (cordon_text(row), pause_text(row), str(row.get("sentence") or ""))))


def _line(row: Mapping[str, Any]) -> tuple[object, ...]:
    why = "; ".join(
        filter(None, ("cordoned" if row.get("cordoned") and not cordon_text(row) else "", reason_text(row)))
    )
    free, total = row.get("free") or {}, (row.get("total") or {}) if is_of_now(row) else {}
    room = ", ".join(f"{_number(free.get(name, 0))} of {_number(amount)} {name}" for name, amount in total.items())
    facts = (row.get("items"), row.get("nodes"), room or None, _text(row.get("tags")), row.get("ray_version"))
    return (row.get("name"), row.get("state"), why, *facts)


def _text(value: object) -> object:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_number(amount)}" for name, amount in value.items())
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else value


def _number(amount: object) -> str:
    return f"{amount:g}" if isinstance(amount, float) else str(amount)
