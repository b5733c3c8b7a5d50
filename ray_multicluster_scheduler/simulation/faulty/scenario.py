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
from ray_multicluster_scheduler.scheduler.pools.pool import Pool

OWNERS = ["", "ann", "bob"]
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
    "preemption": {"min_runtime_s": 1, "cool_down_s": 5, "grace_s": 3},
    "retry_backoff": {"base_s": 0.5, "max_s": 5},
}
"""Short times, so that much happens in a run."""


@dataclass(frozen=True, slots=True)
class Action:
    """At this time, call this method of `FaultyRun` with these arguments. A fault with a duration heals by itself."""

    at: float
    method: str
    arguments: tuple[Any, ...] = ()
    is_fault: bool = False


@dataclass(frozen=True, slots=True)
class Scenario:
    """All input of a run. The same scenario gives the same run, to the byte."""

    seed: int
    settings: Mapping[str, Any]
    clusters: tuple[ClusterMetadata, ...]
    nodes: Mapping[str, Mapping[str, Resources]]
    actions: tuple[Action, ...]
    items: Mapping[str, TaskDescription] = field(default_factory=dict)
    pools: tuple[Pool, ...] = ()
    fault_rate: float = 1.0
    """Scales how often a message is lost, late or repeated; 0 for a run in which only actions cause faults."""


@dataclass(frozen=True, slots=True)
class Style:
    """The workload of a run: items per second, their kinds and sizes, and whether they come in bursts."""

    rate: float
    kinds: tuple[str, ...]
    sizes: tuple[float, ...]
    short: bool = False
    bursts: int = 0
    plain: bool = False
    """Items differ only in size: decisions are cheap, so that a run can have many steps."""
    stream: bool = False
    """After all faults, a stream of small tasks fills the fleet, with wide items among them."""
    pools: bool = False
    """Items belong to pools, whose quota changes at times."""
    storm: bool = False
    """Almost all items are preemptible and run for long, and their priorities differ much."""


_MIXED = ("task", "task", "task", "task", "job", "actor", "gang")
STYLES = {
    "mixed": Style(1.5, _MIXED, (0.5, 1.0, 2.0, 4.0)),
    "wide": Style(2.5, ("task", "task", "task", "gang"), (1.0, 2.0, 4.0, 8.0)),
    "short": Style(4.0, ("task",), (4.0, 4.0, 4.0, 2.0), short=True, bursts=4),
    "bursts": Style(2.5, _MIXED, (1.0, 1.0, 4.0), bursts=5),
    "stream": Style(2.5, ("task", "task", "gang"), (1.0, 2.0, 4.0), stream=True),
    "plain": Style(4.0, ("task", "task", "task", "task", "job"), (1.0, 2.0), plain=True),
    "pools": Style(2.5, _MIXED, (1.0, 2.0, 4.0), pools=True),
    "storm": Style(4.0, ("task",) * 8 + ("job", "actor", "gang"), (1.0, 2.0, 4.0), pools=True, storm=True),
}
_STYLES_BY_SEED = [style for style in STYLES.values() if not style.pools]


def generate_scenario(seed: int, items: int = ITEMS, style: Style | None = None) -> Scenario:
    """A run with many items, several clusters and at least five faults, one of them a crash of the control plane.

    The order of the random draws is part of the seed: an old seed must give the same scenario.
    """
    rng = Random(f"script {seed}")  # nosec B311 # reproducible on purpose
    style = style or _STYLES_BY_SEED[seed % len(_STYLES_BY_SEED)]
    nodes = _draw_nodes(rng)
    clusters = tuple(_draw_cluster(rng, name) for name in nodes)
    names = list(nodes)
    length = items / style.rate
    described: dict[str, TaskDescription] = {}
    actions: list[Action] = []
    bursts = [0.0, *(rng.random() * length for _ in range(style.bursts - 1))] if style.bursts else []
    times = sorted(BEGIN + (rng.choice(bursts) if bursts else rng.random() * length) for _ in range(items))
    for number, at in enumerate(times):
        item = replace(random_item(rng, f"t{number}", style, names, list(described)), submitted_at=at)
        described[item.id] = item
        actions += _item_actions(rng, item, at, length)
    actions += [
        _draw_fault(rng, names, nodes, BEGIN + rng.uniform(0.15, 1) * length) for _ in range(rng.randint(6, 16))
    ]
    actions += [_operator_action(rng, names, BEGIN + rng.random() * length) for _ in range(rng.randint(0, 6))]
    # Streams of their own, so that seeds from before there were these actions stay what they were.
    actions += _limit_actions(Random(f"limits {seed}"), length)  # nosec B311 # reproducible on purpose
    actions += _silent_heads(Random(f"heads {seed}"), names, length)  # nosec B311 # the same
    actions += [Action(BEGIN + (one + rng.random()) * length / 12, "dump_state", (one % 6 == 5,)) for one in range(14)]
    actions += [Action(BEGIN + (0.1 + 0.9 * rng.random()) * length, "crash", (rng.random() < 0.6,), True)]
    if style.stream:
        cpus = sum(node["CPU"] for one in nodes.values() for node in one.values())
        actions += _stream_actions(rng, described, BEGIN + length + 1, cpus)
    pools: tuple[Pool, ...] = ()
    if style.pools:
        pool_rng = Random(f"pools {seed}")  # nosec B311 # reproducible on purpose
        pools = _draw_pools(pool_rng, nodes)
        actions += _pool_actions(pool_rng, pools, length)
        described = {one: _pooled(pool_rng, item, pools, style) for one, item in described.items()}
    actions.sort(key=lambda action: action.at)
    settings = _draw_settings(rng, style)
    return Scenario(seed, settings, clusters, nodes, tuple(actions), described, pools, rng.choice([1.0, 1.0, 0.3]))


def _stream_actions(rng: Random, described: dict[str, TaskDescription], at: float, cpus: float) -> list[Action]:
    """Once all faults have healed, small tasks, a little more than the fleet can run, and two wide items."""
    actions = [Action(at, "end_faults")]
    at += HEALED_S
    items = [
        TaskDescription(f"s{number}", "task", f"s{number}", {"CPU": 2.0}, function_digest="runs 4.0")
        for number in range(int(STREAM_S * cpus / 8 * 1.1))
    ]
    items += [_wide_item(rng, f"w{number}") for number in range(2)]
    for item in items:
        when = at + rng.random() * STREAM_S if item.id[0] == "s" else at + rng.uniform(5, 10)
        described[item.id] = replace(item, submitted_at=when)
        actions.append(Action(when, "submit", (item.id, "")))
    return actions


def _draw_settings(rng: Random, style: Style) -> dict[str, Any]:
    rules = rng.random() < 0.5 and not style.short
    return {
        **SETTINGS,
        "resource_threshold": rng.choice([1, 0.7, 0.5]) if rules else 1,
        "submission_interval_s": rng.choice([0, 3]) if rules else 0,
        "submission_interval_kinds": rng.choice([["job"], ["job", "task"], ["actor", "job", "task"]]),
        "execution_mode": "serial" if rules and rng.random() < 0.2 else "parallel",
        "max_queue": rng.choice([100_000, 100_000, 40]),
        "breaker_failures": rng.choice([2, 3, 5]),
        "reserve_after_s": rng.choice([0, 5, 20]),
        "ageing_s": rng.choice([5, 60, 3600]),
        "order": rng.choice(["fair", "fair", "fifo"]),
        "owners": rng.choice([{}, {"bob": {"max_running": 3, "max_queued": 30, "weight": 2}}]),
    }


def _draw_nodes(rng: Random) -> dict[str, dict[str, dict[str, float]]]:
    nodes: dict[str, dict[str, dict[str, float]]] = {}
    for name in "abcd"[: rng.choice([2, 2, 3, 4])]:
        nodes[name] = {f"{name}{one}": {"CPU": rng.choice([4.0, 8.0, 8.0])} for one in range(rng.randint(1, 3))}
    return nodes


def _draw_cluster(rng: Random, name: str) -> ClusterMetadata:
    return ClusterMetadata(
        name,
        dashboard=f"http://{name}:8265",
        max_in_flight=rng.choice([1000, 12, 5]),
        max_running_jobs=rng.choice([20, 2]),
        tags=("x",) if rng.random() < 0.5 else (),
    )


def _draw_pools(rng: Random, nodes: Mapping[str, Mapping[str, Resources]]) -> tuple[Pool, ...]:
    """Two or three pools that lend to each other, and one with a quota for some clusters. Each item fits each quota."""
    lenders: list[Pool] = []
    for name in ("p", "q", "r")[: rng.choice([2, 2, 3])]:
        protected = rng.random() < 0.2
        limit = {"CPU": rng.choice([2.0, 8.0])}
        cohort = "all" if rng.random() < 0.9 else None
        lenders.append(
            Pool(
                name=name,
                quota={"CPU": rng.choice([8.0, 12.0])},
                cohort=cohort,
                borrow_limit=limit if not protected and rng.random() < 0.4 else {},
                lend_limit=limit if rng.random() < 0.4 else {},
                protected=protected,
                reclaim="never" if cohort is None else rng.choice(["never", "lower_priority", "any"]),
                preemptible=rng.random() < 0.5,
                priority=rng.choice([0, 0, 2]),
            )
        )
    some = rng.sample(sorted(nodes), rng.randint(1, len(nodes)))
    return (*lenders, Pool(name="here", place_quota={place: {"CPU": 8.0} for place in some}))


def _pooled(rng: Random, item: TaskDescription, pools: tuple[Pool, ...], style: Style) -> TaskDescription:
    """The item in some pool or none; it may be preemptible, or urgent."""
    if style.storm:
        return replace(
            item,
            pool=rng.choice([None, None, *(pool.name for pool in pools)]),
            preemptible=rng.random() < 0.9,
            priority=rng.choice([0, 0, 1, 3, 6, 9]),
            function_digest=f"runs {rng.choice([2.0, 5.0, 10.0])}" if item.kind == "task" else None,
        )
    return replace(
        item,
        pool=rng.choice([None, *(pool.name for pool in pools for _ in "ab")]),
        preemptible=rng.choice([None, True, True, False]),
        priority=rng.choice([item.priority, item.priority, 2.5, 9]),
        min_runtime_s=rng.choice([None, None, 3.0]),
    )


def _pool_actions(rng: Random, pools: tuple[Pool, ...], length: float) -> list[Action]:
    actions = []
    for _ in range(rng.randint(0, 4)):
        at, pool = BEGIN + rng.random() * length, rng.choice(pools).name
        if rng.random() < 0.3:
            actions.append(Action(at, "delete_pool", (pool, rng.uniform(1, 15))))
        else:
            actions.append(Action(at, "resize", (pool, rng.choice([0.0, 0.25, 0.5, 2.0]), rng.uniform(1, 15))))
    return actions


# ---- actions


def _item_actions(rng: Random, item: TaskDescription, at: float, length: float) -> list[Action]:
    """Submit one item, sometimes twice, and sometimes cancel it, hold it or change its priority."""
    late = rng.random() < 0.08
    actions = [Action(at, "submit", (item.id, "waits for an argument" if late else ""))]
    if late:
        actions.append(Action(at + rng.uniform(0.1, 10), "resolve_arguments", (item.id, rng.random() < 0.8)))
    if rng.random() < 0.06:
        actions.append(Action(at + rng.uniform(0, 5), "submit", (item.id, ""), True))
    if rng.random() < 0.12:
        actions.append(Action(at + rng.uniform(0, length / 3), "cancel", (item.id, rng.random() < 0.3)))
    if rng.random() < 0.05:
        actions.append(Action(at + rng.uniform(0, 5), "hold", (item.id, rng.uniform(1, 20))))
    if rng.random() < 0.06:
        actions.append(Action(at + rng.uniform(0, 5), "set_priority", (item.id, rng.choice([-1, 0, 2, 4]))))
    return actions


def _draw_fault(rng: Random, names: list[str], nodes: Mapping[str, Mapping[str, Resources]], at: float) -> Action:
    name = rng.choice(names)
    match rng.choice(["cut", "cut", "cut", "die", "node", "load", "silence", "block", "blip", "refuse"]):
        case "cut":
            return Action(at, "cut_link", (name, rng.choice([1.0, 4.0, 7.0, 10.0, 15.0, 40.0])), True)
        case "blip":
            return Action(at, "cut_link", (name, rng.uniform(0.01, 0.5)), True)
        case "die":
            return Action(at, "kill_cluster", (name, rng.choice([1.0, 5.0, 30.0])), True)
        case "node":
            return Action(at, "lose_node", (name, rng.choice(sorted(nodes[name])), rng.uniform(2, 20)), True)
        case "load":
            return Action(at, "load_node", (name, rng.choice([0.3, 0.8, 1.0]), rng.uniform(1, 20)), True)
        case "silence":
            return Action(at, "silence_dashboard", (name, rng.uniform(1, 25)), True)
        case "block":
            return Action(at, "block_agents", (name, rng.uniform(1, 25)), True)
    return Action(at, "refuse_dispatches", (name, rng.uniform(0.5, 6)), True)


def _limit_actions(rng: Random, length: float) -> list[Action]:
    """Change the limits of some owners for a while."""
    actions = []
    for seconds in [rng.uniform(1, 15) for _ in range(rng.choice([0, 0, 1, 3]))]:
        at, owner = BEGIN + rng.random() * length, rng.choice(OWNERS)
        weight, running = rng.choice([1.0, 0.2, 5.0]), rng.choice([None, 0, 1, 4])
        actions.append(Action(at, "limit", (owner, weight, running, rng.choice([None, None, 20]), seconds)))
    return actions


def _silent_heads(rng: Random, names: list[str], length: float) -> list[Action]:
    return [
        Action(BEGIN + rng.uniform(0.1, 1) * length, "silence_head", (rng.choice(names), seconds), True)
        for seconds in rng.choice([(), (8.0,), (3.0, 15.0), (12.0, 25.0)])
    ]


def _operator_action(rng: Random, names: list[str], at: float) -> Action:
    match rng.choice(["cordon", "pause", "owner", "remove"]):
        case "cordon":
            return Action(at, "cordon", (rng.choice(names), rng.uniform(1, 15)))
        case "pause":
            return Action(at, "pause", ("cluster", rng.choice(names), rng.uniform(1, 15)))
        case "remove" if len(names) > 2:
            return Action(at, "remove", (names[-1], rng.uniform(1, 15)))
    return Action(at, "pause", ("owner", rng.choice(OWNERS), rng.uniform(1, 15)))


# ---- items


def random_item(rng: Random, task_id: str, style: Style, clusters: list[str], before: list[str]) -> TaskDescription:
    """An item of this style; ``before`` are ids that it may depend on."""
    kind: Any = rng.choice(style.kinds)
    needs = {"CPU": rng.choice(style.sizes)}
    gang = _random_gang(rng) if kind == "gang" else None
    if style.plain:
        return TaskDescription(
            id=task_id,
            kind=kind,
            name=task_id,
            requirements=needs,
            function_digest=f"runs {rng.choice([0.1, 0.5, 1.0, 2.0])}" if kind == "task" else None,
            job=JobDescription("true") if kind == "job" else None,
        )
    return TaskDescription(
        id=task_id,
        kind=kind,
        name=task_id,
        requirements=_requirements(rng, kind, needs) if gang is None else gang.total,
        tags=rng.choice([(), (), ("x",)]),
        preferred_cluster=rng.choice([*8 * [None], *clusters]),
        fallback=rng.choice(["any", "any", "wait"]),
        priority=rng.choice([0, 0, 0, 1, 3]),
        owner=rng.choice(OWNERS),
        function_digest=_random_function(rng, style) if kind == "task" else None,
        retries=rng.choice([0, 2]),
        retry_lost=kind == "job" and rng.random() < 0.4,
        run_timeout=rng.choice([None, None, 6.0]),
        queue_timeout=rng.choice([None, None, None, 20.0]),
        after=tuple(rng.sample(before, 1)) if before and rng.random() < 0.06 else (),
        job=JobDescription("true") if kind == "job" else None,
        actor=_random_actor(rng, task_id, needs) if kind == "actor" else None,
        gang=gang,
    )


def _random_function(rng: Random, style: Style) -> str:
    if rng.random() < 0.05:
        return "fails"
    return f"{'short' if style.short or rng.random() < 0.2 else 'long'}{rng.choice('12')}"


def _wide_item(rng: Random, task_id: str) -> TaskDescription:
    """An item that needs the room of several small ones."""
    if rng.random() < 0.5:
        return TaskDescription(task_id, "task", task_id, {"CPU": 8.0}, function_digest="runs 1.0")
    members = tuple(MemberDescription(f"m{one}", {"CPU": 4.0}, "f", "a") for one in range(2))
    gang = GangDescription(members, "STRICT_PACK")
    return TaskDescription(task_id, "gang", task_id, gang.total, gang=gang)


def _requirements(rng: Random, kind: str, needs: dict[str, float]) -> dict[str, float]:
    """Half of the jobs and actors require no resources, as is usual."""
    return {} if kind in ("job", "actor") and rng.random() < 0.5 else needs


def _random_actor(rng: Random, task_id: str, needs: dict[str, float]) -> ActorDescription:
    return ActorDescription(
        task_id,
        placement=needs,
        max_restarts=rng.choice([0, 1, 5]),
        restart_elsewhere=rng.random() < 0.5,
        ready_timeout=rng.choice([None, 6.0]),
    )


def _random_gang(rng: Random) -> GangDescription:
    size = rng.choice([1.0, 2.0])
    members = tuple(MemberDescription(f"m{one}", {"CPU": size}, "f", "a") for one in range(rng.randint(2, 4)))
    strategy: Any = rng.choice(["PACK", "PACK", "SPREAD", "STRICT_PACK"])
    return GangDescription(members, strategy)
