"""The workload of a simulation: what is submitted, when, and how long it runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model import (
    ActorDescription,
    GangDescription,
    JobDescription,
    Resources,
    TaskDescription,
)
from ray_multicluster_scheduler.common.model.gang_description import MemberDescription
from ray_multicluster_scheduler.common.model.item_fields import Kind
from ray_multicluster_scheduler.control_plane.config.settings import Settings

Outcome = Literal["succeeded", "failed", "cancelled"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
KINDS: tuple[Kind, ...] = ("task", "job", "actor", "gang")


@dataclass(frozen=True, slots=True)
class Item:
    """One item. ``needs`` are its requirements; for a gang, those of each of its ``members``.

    ``run_s`` is its run time at speed 1. The first ``fails`` attempts end with an exception of user code, and the next
    one with ``outcome``: an item that "failed" fails after ``fails`` attempts, whatever the settings; one that was
    "cancelled" is stopped after ``run_s``. ``function`` names its code: the scheduler learns one run time per function.
    """

    submit_s: float
    needs: Resources
    run_s: float
    owner: str = ""
    priority: float = 0
    tags: tuple[str, ...] = ()
    require_tags: tuple[str, ...] = ()
    kind: Kind = "task"
    function: str = ""
    members: int = 1
    fails: int = 0
    outcome: Outcome = "succeeded"

    def work(self, resource: str = "CPU") -> float:
        """Resource-seconds at speed 1."""
        return self.needs.get(resource, 0.0) * self.members * self.run_s

    def describe(self, task_id: str, settings: Settings) -> TaskDescription:
        """The task description that a client would submit."""
        job = actor = gang = None
        needs: Resources = self.needs
        if self.kind == "job":
            job = JobDescription(self.function or "simulated")
        elif self.kind == "actor":
            actor = ActorDescription(task_id, placement=needs or {"CPU": 1.0})
        elif self.kind == "gang":
            member = MemberDescription(self.function or "simulated", needs, self.function or "simulated", "")
            gang = GangDescription((member,) * self.members)
            needs = gang.total
        return TaskDescription(
            id=task_id,
            kind=self.kind,
            name=self.function or self.kind,
            requirements=needs,
            tags=self.tags,
            require_tags=self.require_tags,
            priority=self.priority,
            owner=self.owner,
            retries=max(0, self.fails - 1) if self.outcome == "failed" else settings.retries,
            crash_retries=settings.crash_retries,
            lost_retries=settings.lost_retries,
            function_digest=self.function or None,
            job=job,
            actor=actor,
            gang=gang,
            submitted_at=self.submit_s,
        )


class Workload(Sequence[Item]):
    """Items in the order of their submission. Raises ConfigurationError for an invalid item."""

    def __init__(self, items: Iterable[Item]) -> None:
        self._items = sorted(items, key=lambda item: item.submit_s)
        for number, item in enumerate(self._items):
            known = item.kind in KINDS and item.outcome in OUTCOMES
            if item.submit_s < 0 or item.run_s < 0 or item.members < 1 or not known:
                raise ConfigurationError(
                    f"Item {number} of the workload is invalid: {item}.",
                    next_step=f"give times of 0 or more, members of 1 or more, a kind of {', '.join(KINDS)}, and an "
                    f"outcome of {', '.join(OUTCOMES)}",
                )

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, at: int) -> Item:  # type: ignore[override]  # no slices: a part is Workload(list(all)[a:b])
        return self._items[at]

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items)

    @property
    def span_s(self) -> float:
        """Seconds from the beginning of the run to the last submission."""
        return self._items[-1].submit_s if self._items else 0.0

    def work(self, resource: str = "CPU", tag: str | None = None) -> float:
        """Resource-seconds at speed 1 of all items, or of those that require the tag."""
        return sum(item.work(resource) for item in self._items if tag is None or tag in item.require_tags)

    def required_tags(self) -> list[str]:
        return sorted({tag for item in self._items for tag in item.require_tags})
