"""Amounts of CPU, GPU, memory and custom resources."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from ray_multicluster_scheduler.common.exception import ConfigurationError

Resources: TypeAlias = Mapping[str, float]
"""Name to amount. ``CPU``, ``GPU``, ``memory`` (bytes) and custom names; zero amounts are left out."""
ResourceShape: TypeAlias = tuple[tuple[str, float], ...]

_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGTP", start=1):
    _UNITS[f"{_letter}B"] = 1000**_power
    _UNITS[f"{_letter}IB"] = 1024**_power
    _UNITS[_letter] = 1024**_power

_SIZE = re.compile(r"^\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*)\s*$")
_CANONICAL = {"cpu": "CPU", "num_cpus": "CPU", "gpu": "GPU", "num_gpus": "GPU", "memory": "memory"}
_AMOUNTS = "give a number from 0 to 1e300"
_RAY_STEP = 10_000  # Ray keeps four decimals
_HALF_STEP = 0.5 / _RAY_STEP


def parse_size(text: str) -> float:
    """Bytes in ``"1GiB"``, ``"500 MB"``, ``"1024"``. Raises ConfigurationError."""
    match = _SIZE.match(text)
    unit = match.group(2).upper() if match else ""
    if match is None or unit not in _UNITS:
        raise ConfigurationError(
            f"{text!r} is not a size.", next_step='give bytes as a number, or text such as "500MB" or "1GiB"'
        )
    return float(match.group(1)) * _UNITS[unit]


def parse_resources(
    given: Mapping[str, object] | None, *, what: str = "resource_requirements", keep_zeros: bool = False
) -> dict[str, float]:
    """Check and normalise what a user gave. Raises ConfigurationError that names the key."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            f"{what} is {type(given).__name__}, not a mapping.",
            next_step='give for example {"CPU": 2, "memory": "1GiB"}',
        )
    amounts: dict[str, float] = {}
    for key, value in given.items():
        if not isinstance(key, str) or not key:
            raise ConfigurationError(f"{what} has the key {key!r}.", next_step="use resource names such as CPU")
        name = _CANONICAL.get(key.lower(), key)
        if name in amounts:
            raise ConfigurationError(f"{what} names {name} twice.", next_step="keep one of the two spellings")
        amount = _amount(name, key, value, what)
        if amount or keep_zeros:
            amounts[name] = amount
    return amounts


def mentions_cpu(given: Mapping[str, object] | None) -> bool:
    """Whether the requirements name CPUs, be it 0."""
    return any(_CANONICAL.get(str(key).lower()) == "CPU" for key in given or ())


def _amount(name: str, key: str, value: object, what: str) -> float:
    if isinstance(value, str) and name == "memory":
        return math.ceil(parse_size(value))
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigurationError(f"{what}[{key!r}] is {value!r}, not a number.", next_step="give a number, 0 or more")
    try:
        amount = float(value)
    except OverflowError:
        amount = math.inf
    if not math.isfinite(amount * _RAY_STEP) or amount < 0:
        raise ConfigurationError(f"{what}[{key!r}] is {value!r}: that is no amount.", next_step=_AMOUNTS)
    if name == "memory":
        return math.ceil(amount)
    if amount > 1 and name == "GPU" and amount != int(amount):
        raise ConfigurationError(
            f"{what}[{key!r}] is {value!r}: Ray takes parts of one GPU, or whole GPUs.", next_step="give 0.5, 1, 2, …"
        )
    return round(amount * _RAY_STEP) / _RAY_STEP


def requestable(resources: Resources) -> dict[str, float]:
    """Those that items request: without the object store, and what Ray adds for its nodes and placement groups."""
    return {
        name: float(amount)
        for name, amount in resources.items()
        if not name.startswith("node:") and name != "object_store_memory" and "_group_" not in name
    }


def fits(need: Resources, free: Resources) -> bool:
    """Whether ``free`` covers ``need``. Tolerates the rounding of Ray's fixed-point amounts."""
    for name, amount in need.items():  # noqa: SIM110 - placement asks this more often than anything else
        if amount > free.get(name, 0.0) + _HALF_STEP:
            return False
    return True


def plus(left: Resources, right: Resources) -> dict[str, float]:
    """The sum, name by name."""
    total = dict(left)
    for name, amount in right.items():
        total[name] = total.get(name, 0.0) + amount
    return total


def total_of(parts: Iterable[Resources]) -> dict[str, float]:
    """The sum of all parts, name by name."""
    left = iter(parts)
    total = dict(next(left, {}))
    for part in left:
        for name, amount in part.items():
            total[name] = total.get(name, 0.0) + amount
    return total


def minus(left: Resources, right: Resources) -> dict[str, float]:
    """The difference, never below zero."""
    rest = dict(left)
    for name, amount in right.items():
        rest[name] = max(0.0, rest.get(name, 0.0) - amount)
    return rest


def at_least(left: Resources, right: Resources) -> dict[str, float]:
    """The larger of the two, name by name."""
    most = dict(left)
    for name, amount in right.items():
        most[name] = max(most.get(name, 0.0), amount)
    return most


def shape_of(resources: Resources) -> ResourceShape:
    """A hashable form of the amounts: items of one shape are interchangeable for placement."""
    return tuple(sorted(resources.items()))


def describe(resources: Resources) -> str:
    """One phrase for people: ``2 CPU, 1 GiB memory``."""
    if not resources:
        return "nothing"
    return ", ".join(_phrase(name, amount) for name, amount in resources.items())


def _phrase(name: str, amount: float) -> str:
    if name.endswith("memory"):
        return f"{amount / 1024**3:.3g} GiB {name}"
    return f"{amount:g} {name}"
