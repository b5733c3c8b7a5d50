"""The parts of the task benchmark: figures, contenders, and the floors and aims of the ratios."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

CPUS = 2
TINY_CALLS, TINY_TASKS = 100_000, 2_000
TEN_MB, LARGE = 10_000_000, 300_000_000


@dataclass(frozen=True)
class Request:
    """One line to a contender: a method of ``_program.Workloads`` and its numbers."""

    do: str
    numbers: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """One kind of figure. Each turn is a warm-up, which is not measured, and then a request."""

    name: str
    title: str
    unit: str
    turns: Mapping[str, Request]
    warm_up: tuple[Request, ...]
    finish: Request | None = None


@dataclass(frozen=True)
class Promise:
    """A bound on a ratio inside one run. A floor must be met; an aim is a goal."""

    kind: str
    part: str
    against: str
    factor: float
    higher_is_better: bool
    contender: str = "rmcs"

    def kept(self, ratio: float | None) -> bool:
        """Is this ratio within the bound? A missing one is not."""
        if ratio is None:
            return False
        return ratio >= self.factor if self.higher_is_better else ratio <= self.factor

    def __str__(self) -> str:
        sign = ">=" if self.higher_is_better else "<="
        return f"{self.part}: {self.contender} {sign} {self.factor:g} x {self.against}"


PROMISES = (
    Promise("floor", "throughput", "ray_client", 1.5, True),
    Promise("floor", "round_trip", "ray_client", 0.7, False),
    Promise("floor", "actor_calls", "ray_client", 1.2, True),
    Promise("floor", "map", "native", 5.0, True),
    Promise("floor", "throughput", "ray_client", 1.0, True, "rmcs_service"),
    Promise("floor", "throughput", "native", 0.8, True),
    Promise("floor", "round_trip", "native", 1.5, False),
    Promise("floor", "throughput", "ray_client", 1.0, True, "rmcs_ray_client"),
    *(
        Promise("floor", part, against, factor, True, contender)
        for part in ("large_result", "large_argument")
        for contender in ("rmcs", "rmcs_service")
        for against, factor in (("ray_client", 1.0), ("socket", 0.3))
    ),
    Promise("aim", "throughput", "native", 1.0, True),
    Promise("aim", "round_trip", "native", 1.0, False),
    Promise("aim", "map", "native", 20.0, True),
)


def all_parts(tasks: int, singles: int) -> list[Part]:
    """Every part, in the order in which they run."""
    carriers = ("rmcs", "rmcs_dial_in", "rmcs_ray_client")
    everyone = ("ray_client", *carriers, "rmcs_no_prefetch", "rmcs_service", "native")
    without_prefetch = ("ray_client", *carriers, "rmcs_service", "native")
    workers = Request("warm_up", {"workers": CPUS})
    actor = Request("open_actor")

    def same(names: tuple[str, ...], do: str, **numbers: int) -> dict[str, Request]:
        return {name: Request(do, numbers) for name in names}

    return [
        Part("throughput", f"{tasks} no-op tasks at once", "tasks/s", same(everyone, "tasks", count=tasks), (workers,)),
        Part("round_trip", "one no-op task", "ms", same(everyone, "single_tasks", count=singles), (workers,)),
        Part(
            "actor_calls",
            f"{tasks} calls of one actor at once",
            "calls/s",
            same(without_prefetch, "actor_calls", count=tasks),
            (actor,),
        ),
        Part(
            "actor_round_trip",
            "one call of an actor",
            "ms",
            same(without_prefetch, "single_actor_calls", count=singles),
            (actor,),
            finish=Request("close_actor"),
        ),
        Part(
            "map",
            f"{TINY_CALLS} tiny calls by map, against {TINY_TASKS} plain tasks",
            "calls/s",
            {
                "rmcs": Request("mapped", {"count": TINY_CALLS}),
                "native": Request("tiny_tasks", {"count": TINY_TASKS}),
            },
            (workers,),
        ),
        Part(
            "ten_mb",
            "10 MB in and out",
            "ms",
            same(without_prefetch, "echoes", size=TEN_MB, count=5),
            (workers, Request("echoes", {"size": TEN_MB, "count": 1})),
        ),
        *(
            Part(
                f"large_{what}",
                f"{LARGE // 1_000_000} MB as the {what} of a task, and between two processes over a socket",
                "MB/s",
                same(("socket", "ray_client", "rmcs", "rmcs_service"), f"large_{what}", size=LARGE),
                (Request(f"large_{what}", {"size": TEN_MB}),),
            )
            for what in ("result", "argument")
        ),
    ]
