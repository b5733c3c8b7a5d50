"""Figures in the text form that Prometheus reads. Only what we need of it: counters, gauges, histograms."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from math import inf

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Labels = Mapping[str, str]


class Histogram:
    """How often something took at most so long. Cheap to add to; one thread adds."""

    __slots__ = ("_bounds", "_counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self._counts)

    def buckets(self) -> list[tuple[float, int]]:
        """Bounds with how many were not above them; the last one is infinite."""
        total, rows = 0, []
        for bound, count in zip((*self._bounds, inf), self._counts, strict=True):
            total += count
            rows.append((bound, total))
        return rows


class Exposition:
    """The text, family by family."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def family(self, name: str, kind: str, says: str, samples: Iterable[tuple[Labels, float]]) -> None:
        """A ``counter`` or a ``gauge``; one without samples is left out."""
        rows = [f"{name}{_labels(labels)} {_number(value)}" for labels, value in samples]
        if rows:
            self._lines += [f"# HELP {name} {_help(says)}", f"# TYPE {name} {kind}", *rows]

    def histogram(self, name: str, says: str, histogram: Histogram) -> None:
        self._lines += [f"# HELP {name} {_help(says)}", f"# TYPE {name} histogram"]
        self._lines += [
            f"{name}_bucket{_labels({'le': _number(bound)})} {count}" for bound, count in histogram.buckets()
        ]
        self._lines += [f"{name}_sum {_number(histogram.sum)}", f"{name}_count {histogram.count}"]

    def text(self) -> str:
        return "\n".join([*self._lines, ""])


def _labels(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}" if labels else ""


def _escaped(value: str) -> str:
    plain = value.encode("utf-8", "replace").decode()
    return plain.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _help(says: str) -> str:
    return says.replace("\\", "\\\\").replace("\n", " ")


def _number(value: float) -> str:
    if value == inf:
        return "+Inf"
    return str(int(value)) if value == int(value) else repr(float(value))
