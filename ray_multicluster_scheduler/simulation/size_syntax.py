"""Parse the short syntax for nodes, amounts and times, such as ``4x{CPU:16,GPU:2}+2x{CPU:8}@1.5``."""

from __future__ import annotations

import math
import re

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model.checks import plain_number
from ray_multicluster_scheduler.common.model.resources import parse_resources

_GROUP = re.compile(r"\s*(?:(\d+)\s*[x×]\s*)?\{([^{}]*)\}\s*")
_TIME = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*(ms|s|m|min|h|d)?\s*")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, None: 1.0}
_MAX_NODES = 100_000


def parse_nodes(text: str) -> tuple[list[dict[str, float]], float | None]:
    """The nodes, and the speed if one is given. Raises ConfigurationError."""
    sizes, at, speed_text = text.partition("@")
    nodes: list[dict[str, float]] = []
    for part in sizes.split("+"):
        match = _GROUP.fullmatch(part)
        if match is None:
            raise _invalid(text, f"{part.strip()!r} is not a group of nodes")
        count = int(match.group(1) or 1)
        if len(nodes) + count > _MAX_NODES:
            raise _invalid(text, f"it has more than {_MAX_NODES} nodes")
        nodes += [parse_amounts(match.group(2), separator=",")] * count
    if not nodes:
        raise _invalid(text, "it has no nodes")
    try:
        speed = float(speed_text) if at else None
    except ValueError:
        raise _invalid(text, f"{speed_text!r} is not a speed") from None
    return nodes, speed


def parse_amounts(text: str, *, separator: str = ";") -> dict[str, float]:
    """``CPU:4,memory:8GiB`` or ``CPU=4;GPU=1``; nothing for an empty text. Raises ConfigurationError."""
    given: dict[str, object] = {}
    for part in filter(None, (one.strip() for one in text.split(separator))):
        name, sign, amount = part.replace("=", ":").partition(":")
        name = name.strip()
        if not name or not sign or name in given:
            what = "is given twice" if name in given else "is not name:amount"
            raise ConfigurationError(f"{part!r} {what}.", next_step="write amounts such as CPU:4 or memory:8GiB")
        given[name] = amount.strip() if name.lower() == "memory" else _number(part, amount)
    return parse_resources(given, what="the amounts")


MAX_S = 366 * 86_400.0
"""The longest simulated time: clusters are polled every few seconds, even when nothing happens."""


def parse_time(text: object) -> float:
    """Seconds in ``90``, ``"15min"``, ``"2h"``. Raises ConfigurationError."""
    match = _TIME.fullmatch(str(text))
    if match is None:
        raise ConfigurationError(f"{text!r} is not a time.", next_step="give seconds, or 500ms, 90s, 15min, 24h, 2d")
    time = float(match.group(1)) * _SECONDS[match.group(2)]
    if time > MAX_S:
        raise ConfigurationError(
            f"{text!r} is more than a year; times count from the beginning of the run. Is it a date?",
            next_step="subtract the first time from all of them",
        )
    return time


def parse_priority(text: str) -> float:
    """A finite number; a whole one without a fraction. Raises ValueError."""
    priority = float(text)
    if not math.isfinite(priority):
        raise ValueError(text)
    return plain_number(priority)


def _number(part: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigurationError(f"{part!r}: {text!r} is not a number.", next_step="write for example CPU:4") from None


def _invalid(text: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"{text!r} does not describe the nodes of a cluster: {why}.",
        next_step="write for example 4x{CPU:16,GPU:2}+2x{CPU:8}@1.5 (numbers of nodes, what each has, the speed)",
    )
