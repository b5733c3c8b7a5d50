"""Format the figures of runs as text and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ray_multicluster_scheduler.simulation.report.result import Result

UNKNOWN = "–"
_WAITS = ("mean", "p50", "p95", "p99", "max")


def format_duration(value: float | None) -> str:
    """``12.3 s``, ``4.5 min``, ``6.7 h``."""
    if value is None:
        return UNKNOWN
    if value < 120:
        return f"{value:.3g} s" if value < 10 else f"{value:.1f} s"
    return f"{value / 60:.1f} min" if value < 7200 else f"{value / 3600:.1f} h"


def rows(results: Mapping[str, Result]) -> Iterator[list[str]]:
    """One row per figure, one cell per run; the first cell names the figure."""
    figures = [result.figures for result in results.values()]

    def row(name: str, format_cell: Callable[[Any], str], *path: str) -> list[str]:
        cells: list[Any] = list(figures)
        for key in path:
            cells = [data.get(key) for data in cells]
        return [name, *map(format_cell, cells)]

    for what in ("submitted", "succeeded", "failed", "cancelled", "unfinished"):
        yield row(f"items {what}", "{:,}".format, "items", what)
    yield row("makespan", format_duration, "makespan_s")
    for name in _WAITS:
        yield row(f"wait {name}", format_duration, "wait_s", name)
    for kind in ("owner", "priority", "shape"):
        yield from _groups(figures, kind)
    for name in _names(figures, "clusters"):
        yield row(f"use of {name}", _use, "clusters", name)
    yield row("fairness (Jain)", lambda value: UNKNOWN if value is None else f"{value:.3f}", "fairness")
    yield row("queue mean / max", lambda queue: f"{queue['mean']:.1f} / {queue['max']:,}", "queue")
    for name, what in (
        ("faults", "faults"),
        ("user errors", "user_errors"),
        ("workers crashed", "crashed"),
        ("ended by lease", "ended_by_lease"),
        ("died with cluster", "died_with_cluster"),
        ("items that survived", "items_survived"),
    ):
        yield row(name, "{:,}".format, "failures", what)
    yield row("prefetched / recalled", lambda sent: f"{sent['attempts']:,} / {sent['recalled']:,}", "sent_ahead")


def _groups(figures: list[Mapping[str, Any]], kind: str) -> Iterator[list[str]]:
    """Waits by owner, priority or shape; no rows if there is only one group, which equals the total."""
    key = f"wait_s_by_{kind}"
    names = _names(figures, key)
    if len(names) < 2:
        return
    yield [f"wait by {kind} (mean / p50 / p95 / p99)", *("" for _ in figures)]
    for name in names:
        cells = []
        for one in figures:
            wait = one[key].get(name)
            values = [wait[which] for which in ("mean", "p50", "p95", "p99")] if wait else []
            cells.append(" / ".join(format_duration(value) for value in values) or UNKNOWN)
        yield [f"  {kind} {name or '(none)'}", *cells]


def _names(figures: list[Mapping[str, Any]], key: str) -> list[str]:
    """The names in any run, in order of first appearance."""
    return list(dict.fromkeys(name for one in figures for name in one[key]))


def _use(cluster: Mapping[str, Any] | None) -> str:
    if cluster is None:
        return UNKNOWN
    shares = ", ".join(f"{share:.0%} {name}" for name, share in cluster["use"].items())
    items = cluster["succeeded"]
    return f"{shares or UNKNOWN}; {items:,} item{'' if items == 1 else 's'}"
