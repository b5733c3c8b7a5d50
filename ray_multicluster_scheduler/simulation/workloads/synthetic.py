"""Generate synthetic workloads from named distributions. The same spec and seed give the same items."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from random import Random
from typing import Any, Generic, TypeVar

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model.item_fields import Kind
from ray_multicluster_scheduler.control_plane.config.validation_errors import did_you_mean
from ray_multicluster_scheduler.simulation.simulated_fleet import SimulatedFleet
from ray_multicluster_scheduler.simulation.size_syntax import parse_amounts, parse_priority, parse_time
from ray_multicluster_scheduler.simulation.virtual_fleet.virtual_clock import random_stream
from ray_multicluster_scheduler.simulation.workloads.workload import KINDS, Item, Workload

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Named:
    """A distribution: the names of its parameters, how few and how many they may be, and its factory."""

    numbers: str
    least: int
    most: int
    make: Callable[..., Callable[[Random], float]]


RUN_TIMES: dict[str, Named] = {
    "constant": Named("seconds", 1, 1, lambda value: lambda _: value),
    "uniform": Named("least,most", 2, 2, lambda low, high: lambda rng: rng.uniform(low, high)),
    "exponential": Named("mean", 1, 1, lambda mean: lambda rng: rng.expovariate(1.0 / mean)),
    "lognormal": Named(
        "median[,sigma]", 1, 2, lambda median, sigma=1.0: lambda rng: rng.lognormvariate(math.log(median), sigma)
    ),
    "pareto": Named(
        "least[,alpha[,most]]",
        1,
        3,
        lambda least, alpha=1.5, most=math.inf: lambda rng: min(most, least * rng.paretovariate(alpha)),
    ),
}


def run_times(text: str) -> Callable[[Random], float]:
    """Parse a run-time distribution such as ``lognormal:60,1.2``. Raises ConfigurationError."""
    name, numbers = _name_and_numbers(text)
    named = RUN_TIMES.get(name)
    if named is None:
        raise _unknown("run", name, RUN_TIMES)
    if not named.least <= len(numbers) <= named.most:
        raise ConfigurationError(
            f"run={text}: {name} takes {named.numbers}.", next_step=f"write run={name}:{named.numbers}, in seconds"
        )
    if any(number <= 0 for number in numbers) or (name == "uniform" and numbers[0] > numbers[1]):
        raise ConfigurationError(
            f"run={text} is not a valid run time.", next_step="give numbers above 0, the least first"
        )
    return named.make(*numbers)


def _poisson(count: int, over_s: float, rng: Random, _: float) -> list[float]:
    """Independent arrivals at a constant rate."""
    at, times = 0.0, []
    for _number in range(count):
        at += rng.expovariate(count / over_s)
        times.append(at)
    return times


def _evenly(count: int, over_s: float, _rng: Random, _: float) -> list[float]:
    """Evenly spaced arrivals."""
    return [over_s * number / count for number in range(count)]


def _bursts(count: int, over_s: float, _rng: Random, bursts: float) -> list[float]:
    """All items in a few bursts, evenly spaced."""
    number_of = max(1, int(bursts))
    return [over_s * (number * number_of // count) / number_of for number in range(count)]


def _daily(count: int, over_s: float, rng: Random, swing: float) -> list[float]:
    """A daily cycle: the rate swings around its mean by this share, with its maximum at noon."""
    times: list[float] = []
    while len(times) < count:
        at = rng.uniform(0.0, over_s)
        if rng.uniform(0.0, 1.0 + swing) <= 1.0 - swing * math.cos(2.0 * math.pi * at / DAY_S):
            times.append(at)
    return sorted(times)


ARRIVALS: dict[str, tuple[Callable[[int, float, Random, float], list[float]], float | None]] = {
    "poisson": (_poisson, None),
    "uniform": (_evenly, None),
    "bursts": (_bursts, 10.0),
    "daily": (_daily, 0.8),
}
"""The function of each process, and the default of its number if it takes one."""


def arrivals(text: str) -> Callable[[int, float, Random], list[float]]:
    """Parse an arrival process such as ``bursts:12``. Raises ConfigurationError."""
    name, numbers = _name_and_numbers(text)
    if name not in ARRIVALS:
        raise _unknown("arrivals", name, ARRIVALS)
    process, usual = ARRIVALS[name]
    if len(numbers) > (usual is not None):
        raise ConfigurationError(
            f"arrivals={text}: {name} takes {'no number' if usual is None else 'one number'}.",
            next_step="write arrivals=poisson, uniform, bursts:10 or daily:0.8",
        )
    number = numbers[0] if numbers else usual or 0.0
    if (name == "bursts" and number < 1) or (name == "daily" and not 0 <= number <= 1):
        raise ConfigurationError(
            f"arrivals={text} is not valid.", next_step="give at least one burst, or a daily swing from 0 to 1"
        )
    return lambda count, over_s, rng: process(count, over_s, rng, number)


def _name_and_numbers(text: str) -> tuple[str, list[float]]:
    name, _, rest = text.partition(":")
    return name.strip(), [parse_time(part) for part in rest.split(",")] if rest else []


def _unknown(key: str, name: str, known: Iterable[str]) -> ConfigurationError:
    return ConfigurationError(
        f"{key}={name}: there is no such distribution.", next_step=f"use one of: {', '.join(known)}"
    )


MAX_ITEMS = 10_000_000
_SAMPLE = 1_000
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Synthetic:
    """The spec of a synthetic workload; as text, ``items=1000 over=2h run=lognormal:60,1.2``.

    Either ``items`` is the number of items, or ``load`` the share of the fleet that they keep busy while they arrive.
    Choices such as ``sizes`` are ``value[:weight]``, separated by commas.
    """

    items: int | None = None
    load: float | None = None
    over: str = "1h"
    arrivals: str = "poisson"
    run: str = "lognormal:60,1.0"
    sizes: str = "1,2,4"
    """CPUs of a normal item."""
    wide: str = "0"
    """Share of wide items, and their CPUs: ``0.2:8``."""
    gpus: str = "0"
    """Share of items that request GPUs, and how many: ``0.1:1``."""
    memory: str = ""
    """Memory that each item requests, such as ``2GiB``."""
    owners: str = "ann"
    priorities: str = "0"
    kinds: str = "task"
    members: int = 4
    """Members of a gang; each requests the item's size."""
    tags: str = ""
    """Preferred tags and the share of items that have each: ``arm64:0.3``."""
    require: str = ""
    """The same for required tags."""
    functions: int = 10
    fails: float = 0.0
    """Share of items whose first attempt ends with an exception of user code."""

    @classmethod
    def parse(cls, text: str) -> Synthetic:
        """Parse ``key=value`` pairs separated by spaces. Raises ConfigurationError."""
        known = {one.name: one.type for one in fields(cls)}
        given: dict[str, Any] = {}
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise ConfigurationError(f"--synthetic: {error}.", next_step="close the quotation mark") from None
        for word in words:
            key, sign, value = word.partition("=")
            if not sign or key not in known:
                raise ConfigurationError(
                    f"--synthetic: {word!r} is not one of its key=value pairs{did_you_mean(key, known)}.",
                    next_step=f"known keys: {', '.join(known)}",
                )
            if key in given:
                raise ConfigurationError(f"--synthetic: {key} is given twice.", next_step="keep one of them")
            given[key] = value if known[key] == "str" else _number(key, value, whole="int" in str(known[key]))
        return cls(**given)

    def generate(self, seed: int, fleet: SimulatedFleet | None = None) -> Workload:
        """Generate the items. ``fleet`` is needed for ``load``. Raises ConfigurationError."""
        if (self.items is None) == (self.load is None):
            raise ConfigurationError(
                "A synthetic workload needs either items or load.", next_step="add items=1000, or load=0.9"
            )
        over_s = parse_time(self.over)
        if over_s <= 0:
            raise ConfigurationError(f"over={self.over} is not a time above 0.", next_step="give for example over=24h")
        draw = _ItemGenerator(self, seed)
        if self.items is not None:
            made = [draw.item() for _ in range(_check_count(self.items))]
        else:
            made = self._generate_load(draw, over_s, fleet)
        times = arrivals(self.arrivals)(len(made), over_s, random_stream(seed, "arrivals"))
        return Workload(Item(at, **values) for at, values in zip(times, made, strict=True))

    def _generate_load(self, draw: _ItemGenerator, over_s: float, fleet: SimulatedFleet | None) -> list[dict[str, Any]]:
        if fleet is None or not fleet.capacity():
            raise ConfigurationError("load= needs a fleet with CPUs.", next_step="give items= instead, or the fleet")
        if self.load is None or self.load <= 0:
            raise ConfigurationError(f"load={self.load} is not a load.", next_step="give a share above 0, such as 0.9")
        wanted, made, work = self.load * fleet.capacity() * over_s, [], 0.0
        while work < wanted:
            values = draw.item()
            work += values["needs"].get("CPU", 0.0) * values["members"] * values["run_s"]
            made.append(values)
            _check_count(len(made))
            if len(made) == _SAMPLE and work > 0:
                _check_count(round(wanted / work * _SAMPLE))  # estimate the total early instead of generating all
        return made


class _ItemGenerator:
    """Draws the properties of an item except its submission time, each from its own random stream."""

    def __init__(self, recipe: Synthetic, seed: int) -> None:
        self._rngs = {
            what: random_stream(seed, what)
            for what in ("run", "size", "wide", "gpus", "owner", "priority", "kind", "tags", "require", "code", "fails")
        }
        self._run = run_times(recipe.run)
        self._sizes = _WeightedChoice("sizes", recipe.sizes, _amount)
        self._wide, self._wide_size = _parse_share("wide", recipe.wide)
        self._gpus, self._gpu_size = _parse_share("gpus", recipe.gpus)
        self._memory = parse_amounts(f"memory={recipe.memory}") if recipe.memory else {}
        self._owners = _WeightedChoice("owners", recipe.owners, str)
        self._priorities = _WeightedChoice("priorities", recipe.priorities, parse_priority)
        self._kinds = _WeightedChoice("kinds", recipe.kinds, _kind)
        self._tags = _tag_shares("tags", recipe.tags)
        self._require = _tag_shares("require", recipe.require)
        self._members, self._functions, self._fails = recipe.members, max(1, recipe.functions), recipe.fails
        self._made: dict[tuple[float, float], dict[str, float]] = {}

    def item(self) -> dict[str, Any]:
        rngs = self._rngs
        size = self._wide_size if self._draw_bool(self._wide, "wide") else self._sizes.draw(rngs["size"])
        gpus = self._gpu_size if self._draw_bool(self._gpus, "gpus") else 0.0
        kind = self._kinds.draw(rngs["kind"])
        return {
            "needs": self._needs(size, gpus),
            "run_s": round(self._run(rngs["run"]), 6),
            "owner": self._owners.draw(rngs["owner"]),
            "priority": self._priorities.draw(rngs["priority"]),
            "kind": kind,
            "tags": tuple(tag for tag, share in self._tags if self._draw_bool(share, "tags")),
            "require_tags": tuple(tag for tag, share in self._require if self._draw_bool(share, "require")),
            "function": f"f{rngs['code'].randrange(self._functions)}",
            "members": self._members if kind == "gang" else 1,
            "fails": int(self._draw_bool(self._fails, "fails")),
        }

    def _draw_bool(self, share: float, what: str) -> bool:
        return share > 0 and self._rngs[what].random() < share

    def _needs(self, cpus: float, gpus: float) -> dict[str, float]:
        """One dictionary per size, shared by all items of that size."""
        known = self._made.get((cpus, gpus))
        if known is None:
            amounts = {"CPU": cpus, "GPU": gpus, **self._memory}
            known = self._made[cpus, gpus] = {name: amount for name, amount in amounts.items() if amount}
        return known


class _WeightedChoice(Generic[T]):
    """Draws one of several values by their weights."""

    def __init__(self, key: str, text: str, read: Callable[[str], T]) -> None:
        self._values: list[T] = []
        weights: list[float] = []
        for part in filter(None, (one.strip() for one in text.split(","))):
            value, _, weight = part.partition(":")
            try:
                self._values.append(read(value))
                weights.append(float(weight or 1))
            except ValueError:
                raise _invalid_choice(key, part) from None
        if not self._values or min(weights) < 0 or not sum(weights):
            raise _invalid_choice(key, text)
        self._until = list(accumulate(weights))

    def draw(self, rng: Random) -> T:
        if len(self._values) == 1:
            return self._values[0]
        return rng.choices(self._values, cum_weights=self._until)[0]


def _invalid_choice(key: str, part: str) -> ConfigurationError:
    return ConfigurationError(
        f"{key}={part} is not a choice.", next_step=f"write values and weights, such as {key}=1:3,2:1"
    )


def _parse_share(key: str, text: str) -> tuple[float, float]:
    share, sign, size = text.partition(":")
    try:
        amounts = float(share), float(size) if sign else 0.0
    except ValueError:
        amounts = -1.0, 0.0
    if not 0 <= amounts[0] <= 1 or (amounts[0] > 0 and amounts[1] <= 0):
        raise ConfigurationError(f"{key}={text} is not share:amount.", next_step=f"write for example {key}=0.2:8")
    return amounts


def _tag_shares(key: str, text: str) -> Sequence[tuple[str, float]]:
    shares = []
    for part in filter(None, (one.strip() for one in text.split(","))):
        tag, _, share = part.partition(":")
        try:
            shares.append((tag, float(share)))
        except ValueError:
            raise ConfigurationError(
                f"{key}={part} is not tag:share.", next_step=f"write for example {key}=arm64:0.3"
            ) from None
    return shares


def _number(key: str, value: str, *, whole: bool) -> float | int:
    try:
        return int(value) if whole else float(value)
    except ValueError:
        raise ConfigurationError(f"--synthetic: {key}={value} is not a number.", next_step="give a number") from None


def _amount(text: str) -> float:
    amount = float(text)
    if not 0 <= amount < float("inf"):
        raise ValueError(text)
    return amount


def _kind(text: str) -> Kind:
    if text not in KINDS:
        raise ValueError(text)
    return text


def _check_count(count: int) -> int:
    if not 1 <= count <= MAX_ITEMS:
        raise ConfigurationError(
            f"A synthetic workload cannot have {count} items.", next_step=f"ask for 1 to {MAX_ITEMS:,}"
        )
    return count
