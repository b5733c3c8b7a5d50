"""What is submitted in faulty runs: items of every kind, in a few styles."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from ray_multicluster_scheduler.common.model import (
    ActorDescription,
    GangDescription,
    JobDescription,
    MemberDescription,
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
