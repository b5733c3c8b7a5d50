"""The floors and aims of the placement benchmark, their verdicts, and the printed table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

AT = 20
"""The fleet for which floors and aims are given."""

POOLS = 50

_NAMED_WRONGS = 10


@dataclass(frozen=True)
class Promise:
    """A bound on a figure of the document. A figure that was not measured has no verdict."""

    words: str
    figure: Callable[[dict[str, Any]], float | None]
    least: float | None = None
    most: float | None = None

    def verdict(self, document: dict[str, Any]) -> dict[str, Any] | None:
        figure = self.figure(document)
        if figure is None:
            return None
        kept = (self.least is None or figure >= self.least) and (self.most is None or figure <= self.most)
        return {"promise": self.words, "figure": round(figure, 4), "passed": kept}


def _loop(document: dict[str, Any], part: str) -> dict[str, Any] | None:
    return next((one for one in document[part] if one["clusters"] == AT), None)


def _rate(part: str) -> Callable[[dict[str, Any]], float | None]:
    def figure(document: dict[str, Any]) -> float | None:
        loop = _loop(document, part)
        return None if loop is None else loop["per_s"]

    return figure


def _long(key: str, inner: str | None = None) -> Callable[[dict[str, Any]], float | None]:
    def figure(document: dict[str, Any]) -> float | None:
        queue = document.get("long_queue")
        if queue is None:
            return None
        value: float = queue[key] if inner is None else queue[key][inner]
        return value

    return figure


FLOORS = (
    Promise(f"cold, {AT} clusters: at least 3,000 decisions/s", _rate("cold"), least=3000),
    Promise(f"steady, {AT} clusters: at least 10,000 completions/s", _rate("steady"), least=10_000),
    Promise(f"steady with {POOLS} pools: at least 0.8 x without", lambda one: one["pooled"]["ratio"], least=0.8),
    Promise("long queue: steady costs at most 1.5 x that with 1,000", _long("cost_ratio"), most=1.5),
    Promise("long queue: p99 of handle() at most 5 ms", _long("handle_ms", "p99"), most=5.0),
    Promise("long queue: less than 1 KB for each item beyond its payload", _long("bytes_per_item"), most=1023.9),
    Promise("every re-checked decision is the naive one", lambda document: len(document["wrong"]), most=0),
    Promise("the requested number of decisions was checked", lambda one: one["checked"] - one["to_check"], least=0),
)
AIMS = (
    Promise(f"cold, {AT} clusters: 10,000 decisions/s", _rate("cold"), least=10_000),
    Promise(f"steady, {AT} clusters: 50,000 completions/s", _rate("steady"), least=50_000),
)


def report(
    cold: list[dict[str, Any]],
    steady: list[dict[str, Any]],
    pooled: dict[str, Any],
    long_queue: dict[str, Any] | None,
    to_check: int,
) -> dict[str, Any]:
    """The whole run as plain data; ``pooled`` and ``long_queue`` are other steady loops, on a fleet of ``steady``."""
    loops = [*cold, *steady, pooled, *([long_queue] if long_queue else [])]
    document: dict[str, Any] = {
        "cold": cold,
        "steady": steady,
        "checked": sum(one["checked"] for one in loops),
        "to_check": to_check,
        "wrong": [text for one in loops for text in one.pop("wrong")],
    }
    usual = next(one for one in steady if one["clusters"] == pooled["clusters"])
    document["pooled"] = {**pooled, "ratio": round(pooled["per_s"] / usual["per_s"], 3)}
    if long_queue is not None:
        document["long_queue"] = {**long_queue, "cost_ratio": round(usual["per_s"] / long_queue["per_s"], 3)}
    for name, promises in (("floors", FLOORS), ("aims", AIMS)):
        verdicts = (promise.verdict(document) for promise in promises)
        document[name] = [one for one in verdicts if one is not None]
    return document


def table(document: dict[str, Any]) -> str:
    """The report as printed text."""
    lines = ["cold: each item a new shape, the ledger changed before each decision", *_rows(document["cold"]), ""]
    lines += ["steady: 1,000 shapes queued; one completion, one pass, one dispatch", *_rows(document["steady"]), ""]
    pooled = document["pooled"]
    lines += [f"steady with {POOLS} pools: {pooled['ratio']:.2f} x without", *_rows([pooled]), ""]
    if "long_queue" in document:
        queue = document["long_queue"]
        lines += [f"steady with {queue['queued']:,} queued", *_rows([queue])]
        lines += [f"  {queue['cost_ratio']:.2f} x the cost with 1,000; {queue['bytes_per_item']:,.0f} bytes/item", ""]
    lines += [f"re-checked: {document['checked']:,} decisions, {len(document['wrong'])} differences"]
    lines += [f"  {text}" for text in document["wrong"][:_NAMED_WRONGS]]
    for bound in ("floors", "aims"):
        lines += ["", f"{bound}:", *(_promise_row(one) for one in document[bound])]
    return "\n".join(lines)


def _rows(loops: list[dict[str, Any]]) -> Iterable[str]:
    yield f"  {'clusters':>8}{'per second':>12}{'p50 ms':>9}{'p99 ms':>9}{'max ms':>9}{'cpu':>6}  mean µs by event"
    for one in loops:
        times = one["handle_ms"]
        events = ", ".join(f"{name} {part['mean_us']:,.0f}" for name, part in one["handle"].items())
        yield (
            f"  {one['clusters']:>8}{one['per_s']:>12,.0f}{times['p50']:>9.3f}{times['p99']:>9.3f}"
            f"{times['max']:>9.2f}{one['cpu_share']:>6.0%}  {events}"
        )


def _promise_row(verdict: dict[str, Any]) -> str:
    return f"  {'PASS' if verdict['passed'] else 'MISS'}  {verdict['promise']}  (here {verdict['figure']:,.4g})"
