"""Generate the scenario of a faulty run from a seed: its items, operator actions and faults.

A scenario can be shortened: any of its actions may be left out. Every other random choice (how long an attempt runs,
which message is lost) is drawn from a random stream of its own, keyed by seed and name, so that leaving an action out
changes nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from ray_multicluster_scheduler.common.model import (
    ActorDescription,
    ClusterMetadata,
    GangDescription,
    JobDescription,
    MemberDescription,
    Resources,
    TaskDescription,
)

OWNERS = ["", "ann", "bob"]


@dataclass(frozen=True, slots=True)
class Style:
    """What kind of run it is: how much comes per second (in bursts, or now and then), and of what."""

    rate: float
    kinds: tuple[str, ...]
    sizes: tuple[float, ...]
    short: bool = False
    bursts: int = 0
    plain: bool = False
    """Alike but for their size: little has to be decided, so many steps can be made."""
    stream: bool = False
    """After all faults, a stream of small tasks that fills the fleet, and wide items among them."""


_MIXED = ("task", "task", "task", "task", "job", "actor", "gang")
STYLES = {
    "mixed": Style(1.5, _MIXED, (0.5, 1.0, 2.0, 4.0)),
    "wide": Style(2.5, ("task", "task", "task", "gang"), (1.0, 2.0, 4.0, 8.0)),
    "short": Style(4.0, ("task",), (4.0, 4.0, 4.0, 2.0), short=True, bursts=4),
    "bursts": Style(2.5, _MIXED, (1.0, 1.0, 4.0), bursts=5),
    "stream": Style(2.5, ("task", "task", "gang"), (1.0, 2.0, 4.0), stream=True),
    "plain": Style(4.0, ("task", "task", "task", "task", "job"), (1.0, 2.0), plain=True),
}


def style_of(seed: int) -> Style:
    """All of them in turn."""
    return list(STYLES.values())[seed % len(STYLES)]


def some_item(chance: Random, task_id: str, style: Style, clusters: list[str], before: list[str]) -> TaskDescription:
    """One of this style; ``before`` are the ids that it may come after."""
    kind: Any = chance.choice(style.kinds)
    needs = {"CPU": chance.choice(style.sizes)}
    gang = _some_gang(chance) if kind == "gang" else None
    if style.plain:
        return _plain(chance, task_id, kind, needs)
    return TaskDescription(
        id=task_id,
        kind=kind,
        name=task_id,
        requirements=_requirements(chance, kind, needs) if gang is None else gang.total,
        tags=chance.choice([(), (), ("x",)]),
        preferred_cluster=chance.choice([*8 * [None], *clusters]),
        fallback=chance.choice(["any", "any", "wait"]),
        priority=chance.choice([0, 0, 0, 1, 3]),
        owner=chance.choice(OWNERS),
        function_digest=_some_function(chance, style) if kind == "task" else None,
        retries=chance.choice([0, 2]),
        retry_lost=kind == "job" and chance.random() < 0.4,
        run_timeout=chance.choice([None, None, 6.0]),
        queue_timeout=chance.choice([None, None, None, 20.0]),
        after=tuple(chance.sample(before, 1)) if before and chance.random() < 0.06 else (),
        job=JobDescription("true") if kind == "job" else None,
        actor=_some_actor(chance, task_id, needs) if kind == "actor" else None,
        gang=gang,
    )


def _some_function(chance: Random, style: Style) -> str:
    if chance.random() < 0.05:
        return "fails"
    return f"{'short' if style.short or chance.random() < 0.2 else 'long'}{chance.choice('12')}"


def small_item(task_id: str) -> TaskDescription:
    """One of many."""
    return TaskDescription(task_id, "task", task_id, {"CPU": 2.0}, function_digest="runs 4.0")


def wide_item(chance: Random, task_id: str) -> TaskDescription:
    """Needs several of the places that small ones have."""
    if chance.random() < 0.5:
        return TaskDescription(task_id, "task", task_id, {"CPU": 8.0}, function_digest="runs 1.0")
    members = tuple(MemberDescription(f"m{one}", {"CPU": 4.0}, "f", "a") for one in range(2))
    gang = GangDescription(members, "STRICT_PACK")
    return TaskDescription(task_id, "gang", task_id, gang.total, gang=gang)


def _plain(chance: Random, task_id: str, kind: Any, needs: dict[str, float]) -> TaskDescription:
    return TaskDescription(
        id=task_id,
        kind=kind,
        name=task_id,
        requirements=needs,
        function_digest=f"runs {chance.choice([0.1, 0.5, 1.0, 2.0])}" if kind == "task" else None,
        job=JobDescription("true") if kind == "job" else None,
    )


def _requirements(chance: Random, kind: str, needs: dict[str, float]) -> dict[str, float]:
    """Of jobs and actors some ask for nothing, as is usual."""
    return {} if kind in ("job", "actor") and chance.random() < 0.5 else needs


def _some_actor(chance: Random, task_id: str, needs: dict[str, float]) -> ActorDescription:
    return ActorDescription(
        task_id,
        placement=needs,
        max_restarts=chance.choice([0, 1, 5]),
        restart_elsewhere=chance.random() < 0.5,
        ready_timeout=chance.choice([None, 6.0]),
    )


def _some_gang(chance: Random) -> GangDescription:
    size = chance.choice([1.0, 2.0])
    members = tuple(MemberDescription(f"m{one}", {"CPU": size}, "f", "a") for one in range(chance.randint(2, 4)))
    strategy: Any = chance.choice(["PACK", "PACK", "SPREAD", "STRICT_PACK"])
    return GangDescription(members, strategy)


BEGIN = 1000.0
ITEMS = 80
HEALED_S, STREAM_S = 45.0, 50.0
SETTINGS: dict[str, Any] = {
    "breaker_recovery_s": 20,
    "lost_after_s": 20,
    "heartbeat_s": 1,
    "lease_s": 8,
    "node_grace_s": 6,
    "start_grace_s": 5,
    "snapshot_interval_s": 2,
    "health_check_interval_s": 10,
    "retry_backoff": {"base_s": 0.5, "max_s": 5},
}
"""Times are short, so that much happens in a run."""


@dataclass(frozen=True, slots=True)
class Deed:
    """Something happens at this time. ``what`` names a method of the run; a fault with a duration heals by itself."""

    at: float
    what: str
    given: tuple[Any, ...] = ()
    fault: bool = False


@dataclass(frozen=True, slots=True)
class Script:
    """All of a run: same script, same run, to the byte."""

    seed: int
    settings: Mapping[str, Any]
    clusters: tuple[ClusterMetadata, ...]
    nodes: Mapping[str, Mapping[str, Resources]]
    deeds: tuple[Deed, ...]
    items: Mapping[str, TaskDescription] = field(default_factory=dict)
    rate: float = 1.0
    """How often messages suffer; 0 for a run in which only the deeds go wrong."""


def make_script(seed: int, items: int = ITEMS, style: Style | None = None) -> Script:
    """A run with many items, several clusters and at least five faults, one of them a crash of the control plane."""
    chance = Random(f"script {seed}")  # nosec B311 # a seed is to give the same again
    style = style or style_of(seed)
    nodes = _nodes(chance)
    clusters = tuple(_cluster(chance, name) for name in nodes)
    names = list(nodes)
    length = items / style.rate
    described: dict[str, TaskDescription] = {}
    deeds: list[Deed] = []
    bursts = [0.0, *(chance.random() * length for _ in range(style.bursts - 1))] if style.bursts else []
    times = sorted(BEGIN + (chance.choice(bursts) if bursts else chance.random() * length) for _ in range(items))
    for number, at in enumerate(times):
        item = replace(some_item(chance, f"t{number}", style, names, list(described)), submitted_at=at)
        described[item.id] = item
        deeds += _life(chance, item, at, length)
    deeds += [
        _fault(chance, names, nodes, BEGIN + chance.uniform(0.15, 1) * length) for _ in range(chance.randint(6, 16))
    ]
    deeds += [_order(chance, names, BEGIN + chance.random() * length) for _ in range(chance.randint(0, 6))]
    deeds += _limits(Random(f"limits {seed}"), length)  # nosec B311 # as above; its own, so that old seeds stay what they are
    deeds += [Deed(BEGIN + (one + chance.random()) * length / 12, "look", (one % 6 == 5,)) for one in range(14)]
    deeds += [Deed(BEGIN + (0.1 + 0.9 * chance.random()) * length, "crash", (chance.random() < 0.6,), True)]
    if style.stream:
        deeds += _stream(
            chance, described, BEGIN + length + 1, sum(node["CPU"] for one in nodes.values() for node in one.values())
        )
    deeds.sort(key=lambda deed: deed.at)
    return Script(
        seed, _settings(chance, style), clusters, nodes, tuple(deeds), described, chance.choice([1.0, 1.0, 0.3])
    )


def _stream(chance: Random, described: dict[str, TaskDescription], at: float, cpus: float) -> list[Deed]:
    """Once all is well again, a little more than the fleet can take for a while, and wide items amid that."""
    deeds = [Deed(at, "calm")]
    at += HEALED_S
    some = [small_item(f"s{number}") for number in range(int(STREAM_S * cpus / 8 * 1.1))]
    some += [wide_item(chance, f"w{number}") for number in range(2)]
    for item in some:
        when = at + chance.random() * STREAM_S if item.id[0] == "s" else at + chance.uniform(5, 10)
        described[item.id] = replace(item, submitted_at=when)
        deeds.append(Deed(when, "submit", (item.id, "")))
    return deeds


def _settings(chance: Random, style: Style) -> dict[str, Any]:
    rules = chance.random() < 0.5 and not style.short
    return {
        **SETTINGS,
        "resource_threshold": chance.choice([1, 0.7, 0.5]) if rules else 1,
        "submission_interval_s": chance.choice([0, 3]) if rules else 0,
        "submission_interval_kinds": chance.choice([["job"], ["job", "task"], ["actor", "job", "task"]]),
        "execution_mode": "serial" if rules and chance.random() < 0.2 else "parallel",
        "max_queue": chance.choice([100_000, 100_000, 40]),
        "breaker_failures": chance.choice([2, 3, 5]),
        "reserve_after_s": chance.choice([0, 5, 20]),
        "ageing_s": chance.choice([5, 60, 3600]),
        "order": chance.choice(["fair", "fair", "fifo"]),
        "owners": chance.choice([{}, {"bob": {"max_running": 3, "max_queued": 30, "weight": 2}}]),
    }


def _nodes(chance: Random) -> dict[str, dict[str, dict[str, float]]]:
    nodes: dict[str, dict[str, dict[str, float]]] = {}
    for name in "abcd"[: chance.choice([2, 2, 3, 4])]:
        nodes[name] = {f"{name}{one}": {"CPU": chance.choice([4.0, 8.0, 8.0])} for one in range(chance.randint(1, 3))}
    return nodes


def _cluster(chance: Random, name: str) -> ClusterMetadata:
    return ClusterMetadata(
        name,
        dashboard=f"http://{name}:8265",
        max_in_flight=chance.choice([1000, 12, 5]),
        max_running_jobs=chance.choice([20, 2]),
        tags=("x",) if chance.random() < 0.5 else (),
    )


def _life(chance: Random, item: TaskDescription, at: float, length: float) -> list[Deed]:
    """What people do with one item."""
    late = chance.random() < 0.08
    deeds = [Deed(at, "submit", (item.id, "waits for an argument" if late else ""))]
    if late:
        deeds.append(Deed(at + chance.uniform(0.1, 10), "arguments", (item.id, chance.random() < 0.8)))
    if chance.random() < 0.06:
        deeds.append(Deed(at + chance.uniform(0, 5), "submit", (item.id, ""), True))
    if chance.random() < 0.12:
        deeds.append(Deed(at + chance.uniform(0, length / 3), "cancel", (item.id, chance.random() < 0.3)))
    if chance.random() < 0.05:
        deeds.append(Deed(at + chance.uniform(0, 5), "hold", (item.id, chance.uniform(1, 20))))
    if chance.random() < 0.06:
        deeds.append(Deed(at + chance.uniform(0, 5), "prioritise", (item.id, chance.choice([-1, 0, 2, 4]))))
    return deeds


def _fault(chance: Random, names: list[str], nodes: Mapping[str, Mapping[str, Resources]], at: float) -> Deed:
    name = chance.choice(names)
    match chance.choice(["cut", "cut", "cut", "die", "node", "others", "silence", "no_links", "blip", "refuse"]):
        case "cut":
            return Deed(at, "cut", (name, chance.choice([1.0, 4.0, 7.0, 10.0, 15.0, 40.0])), True)
        case "blip":
            return Deed(at, "cut", (name, chance.uniform(0.01, 0.5)), True)
        case "die":
            return Deed(at, "die", (name, chance.choice([1.0, 5.0, 30.0])), True)
        case "node":
            return Deed(at, "lose_node", (name, chance.choice(sorted(nodes[name])), chance.uniform(2, 20)), True)
        case "others":
            return Deed(at, "others", (name, chance.choice([0.3, 0.8, 1.0]), chance.uniform(1, 20)), True)
        case "silence":
            return Deed(at, "silence", (name, chance.uniform(1, 25)), True)
        case "no_links":
            return Deed(at, "no_links", (name, chance.uniform(1, 25)), True)
    return Deed(at, "refuse", (name, chance.uniform(0.5, 6)), True)


def _limits(chance: Random, length: float) -> list[Deed]:
    """Some owners may have more or less for a while."""
    return [
        Deed(BEGIN + chance.random() * length, "limit", (chance.choice(OWNERS), *_some_limits(chance), lasts))
        for lasts in [chance.uniform(1, 15) for _ in range(chance.choice([0, 0, 1, 3]))]
    ]


def _some_limits(chance: Random) -> tuple[float, int | None, int | None]:
    return chance.choice([1.0, 0.2, 5.0]), chance.choice([None, 0, 1, 4]), chance.choice([None, None, 20])


def _order(chance: Random, names: list[str], at: float) -> Deed:
    """What an operator wants."""
    match chance.choice(["cordon", "pause", "owner", "remove"]):
        case "cordon":
            return Deed(at, "cordon", (chance.choice(names), chance.uniform(1, 15)))
        case "pause":
            return Deed(at, "pause", ("cluster", chance.choice(names), chance.uniform(1, 15)))
        case "remove" if len(names) > 2:
            return Deed(at, "remove", (names[-1], chance.uniform(1, 15)))
    return Deed(at, "pause", ("owner", chance.choice(OWNERS), chance.uniform(1, 15)))
