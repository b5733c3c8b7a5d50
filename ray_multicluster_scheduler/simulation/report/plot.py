"""Plot cluster utilisation and queue depth over time, as one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ray_multicluster_scheduler.simulation.report.report_text import format_duration
from ray_multicluster_scheduler.simulation.report.result import Comparison, Result

_WIDTH, _LEFT, _STRIP, _QUEUE = 860, 150, 34, 120
_STYLE = """
body{font:14px/1.4 system-ui,sans-serif;margin:2em auto;max-width:1040px;color:#222;background:#fff}
h1{font-size:1.4em}h2{font-size:1.1em;margin:1.6em 0 .2em}p{margin:.2em 0 .6em;color:#555}
svg{display:block;width:100%;height:auto}text{font-size:12px;fill:#444}
.use{fill:#3b7dd8;fill-opacity:.75}.queue{fill:#d8703b;fill-opacity:.75}.axis{stroke:#bbb;stroke-width:1}
"""


def plot(what: Result | Comparison, title: str = "Simulated fleet") -> str:
    """The HTML text: no script, no network access."""
    results = {"": what} if isinstance(what, Result) else what.results
    longest = max((result.series.times[-1] for result in results.values() if result.series.times), default=0.0) or 1.0
    deepest = max((result.series.most_queued() for result in results.values()), default=0) or 1
    parts = [_section(label, result, longest, deepest) for label, result in results.items()]
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head>\n<body><h1>{escape(title)}</h1>\n{body}\n</body></html>\n"
    )


def _section(label: str, result: Result, longest: float, deepest: int) -> str:
    """One run: a strip per cluster, 0 to 100 % of its CPUs, and the queue below, on one time axis."""
    series = result.series
    rows = [
        _area(series.times, line, longest, 1.0, number * (_STRIP + 6), _STRIP, name, "use")
        for number, (name, line) in enumerate(series.use.items())
    ]
    top = len(rows) * (_STRIP + 6) + 10
    rows.append(_area(series.times, series.queued, longest, deepest, top, _QUEUE, f"queued (0–{deepest:,})", "queue"))
    height = top + _QUEUE + 24
    rows += [_tick(longest * share, longest, height - 6) for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    wait = result.wait_s
    median, p95 = format_duration(wait["p50"]), format_duration(wait["p95"])
    facts = f"makespan {format_duration(result.makespan_s)}; wait: median {median}, p95 {p95}"
    heading = f"<h2>{escape(label)}</h2>" if label else ""
    picture = f'<svg viewBox="0 0 {_LEFT + _WIDTH} {height}" role="img">{"".join(rows)}</svg>'
    return f"{heading}<p>{escape(facts)}</p>\n{picture}"


def _area(
    times: Sequence[float],
    values: Sequence[float],
    longest: float,
    most: float,
    top: float,
    height: float,
    name: str,
    kind: str,
) -> str:
    """A step plot: each value holds until the next sample."""
    base = top + height
    points = [f"M{_LEFT},{base:.1f}"]
    before = base
    for at, value in zip(times, values, strict=True):
        x, y = _x(at, longest), base - height * min(1.0, value / most)
        points.append(f"L{x:.1f},{before:.1f}L{x:.1f},{y:.1f}")
        before = y
    end = _x(times[-1], longest) if times else _LEFT
    points.append(f"L{end:.1f},{base:.1f}Z")
    right = _LEFT + _WIDTH
    return (
        f'<text x="{_LEFT - 8}" y="{base - 4:.1f}" text-anchor="end">{escape(name)}</text>'
        f'<path class="{kind}" d="{"".join(points)}"/>'
        f'<line class="axis" x1="{_LEFT}" x2="{right}" y1="{base:.1f}" y2="{base:.1f}"/>'
    )


def _tick(at: float, longest: float, y: float) -> str:
    anchor = "start" if at == 0 else "end" if at == longest else "middle"
    return f'<text x="{_x(at, longest):.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(format_duration(at))}</text>'


def _x(at: float, longest: float) -> float:
    return _LEFT + _WIDTH * at / longest
