"""Pool: a named share of the resources, with its quota and its rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, Self, TypeAlias, get_args

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model.resources import Resources

Reclaim: TypeAlias = Literal["never", "lower_priority", "any"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A pool has a quota for all places together (``quota``) or for each place that it may use (``place_quota``).

    A quota limits the resources that it names, and no others. Pools of one ``cohort`` lend each other what they do not
    use: ``lend_limit`` is how much this pool lends at most, ``borrow_limit`` how much it borrows at most, for each
    resource; a resource that is missing there has no limit. A protected pool does not borrow, and nothing in it is ever
    preempted. ``reclaim``: whose preemptible items it may stop to get back what it lent. ``owners``: who may use it;
    empty for everybody. A pool that is ``draining`` accepts nothing new.
    """

    name: str
    quota: Resources = field(default_factory=dict)
    place_quota: Mapping[str, Resources] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    cohort: str | None = None
    borrow_limit: Resources = field(default_factory=dict)
    lend_limit: Resources = field(default_factory=dict)
    protected: bool = False
    reclaim: Reclaim = "never"
    priority: float = 0
    preemptible: bool = False
    owners: tuple[str, ...] = ()
    draining: bool = False

    def __post_init__(self) -> None:
        if not self.name or "/" in self.name:
            raise ConfigurationError(
                f"{self.name!r} cannot be the name of a pool.", next_step="give a name without a slash"
            )
        if self.quota and self.place_quota:
            raise self._error("has a quota for everything and one for each cluster", "give one of the two")
        if self.reclaim not in get_args(Reclaim):
            raise self._error(f"has reclaim {self.reclaim!r}", f"use one of {', '.join(get_args(Reclaim))}")
        if self.reclaim != "never" and self.cohort is None:
            raise self._error(f"has reclaim {self.reclaim!r} and no cohort", "name the cohort, or leave reclaim out")
        if self.protected and any(self.borrow_limit.values()):
            raise self._error("is protected and has a borrow_limit", "leave one out: a protected pool does not borrow")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_dict` returned; keys that only a later version knows are dropped."""
        known = {one.name: data[one.name] for one in fields(cls) if one.name in data}
        return cls(**{**known, "owners": tuple(known.get("owners", ()))})

    def _error(self, what: str, next_step: str) -> ConfigurationError:
        return ConfigurationError(f"Pool {self.name} {what}.", next_step=next_step)

    def quota_at(self, place: str) -> Resources:
        """The quota from which an item at this place is taken."""
        return self.place_quota.get(place, {}) if self.place_quota else self.quota

    def may_use(self, place: str) -> bool:
        return not self.place_quota or place in self.place_quota

    def may_be_used_by(self, owner: str) -> bool:
        return not self.owners or owner in self.owners


def find_pool(pools: Iterable[Pool], labels: Mapping[str, str], owner: str) -> Pool | None:
    """The pool of an item that names none: the one with the most labels that the item has, too; else the one that lists
    its owner. None if there is none, or if two match equally well."""
    usable = [pool for pool in pools if pool.may_be_used_by(owner)]
    matching = [pool for pool in usable if pool.labels and pool.labels.items() <= labels.items()]
    most = max((len(pool.labels) for pool in matching), default=0)
    best = [pool for pool in matching if len(pool.labels) == most] or [pool for pool in usable if pool.owners]
    return best[0] if len(best) == 1 else None


def check_cohorts(pools: Iterable[Pool]) -> None:
    """Pools lend each other parts of one quota: raises ConfigurationError if some pools of a cohort have a quota for
    everything, and others one for each place."""
    kinds: dict[str, Pool] = {}
    for pool in pools:
        if pool.cohort is None:
            continue
        other = kinds.setdefault(pool.cohort, pool)
        if bool(pool.place_quota) != bool(other.place_quota):
            raise ConfigurationError(
                f"Pools {other.name} and {pool.name} of the cohort {pool.cohort} cannot lend to each other: one has a "
                "quota for the whole fleet, the other one for each cluster.",
                next_step="give all pools of a cohort the same kind of quota",
            )
