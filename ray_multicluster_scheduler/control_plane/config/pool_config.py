"""PoolConfig: one entry of ``pools:``, validated and frozen. It also checks pools that are created at run time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from ray_multicluster_scheduler.common.control_characters import is_one_line
from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model import parse_resources
from ray_multicluster_scheduler.common.model.checks import plain_number
from ray_multicluster_scheduler.control_plane.config.cluster_config import NAME
from ray_multicluster_scheduler.control_plane.config.settings import LimitedPriority, Strict


def _one_line(value: str) -> str:
    if not is_one_line(value):
        raise ValueError("expected text on one line, without control characters")
    return value


def _amounts(value: object, info: ValidationInfo) -> object:
    if not isinstance(value, dict):
        raise ValueError("expected a mapping such as {CPU: 16, memory: 64GiB}")
    try:
        amounts = parse_resources(value, what=str(info.field_name), keep_zeros=True)
    except ConfigurationError as error:
        raise ValueError(str(error)) from None
    return {_one_line(name): amount for name, amount in amounts.items()}


def _name(value: str) -> str:
    if not NAME.fullmatch(value):
        rule = "begin with a letter or a digit, then use letters, digits, '_', '-' and '.'; at most 63"
        raise ValueError(f"{value!r} is not a valid name of a pool: {rule}")
    return value


Word = Annotated[str, Field(min_length=1, max_length=256), AfterValidator(_one_line)]
Amounts = Annotated[dict[str, float], BeforeValidator(_amounts)]
PoolName = Annotated[str, AfterValidator(_name)]
Flag = Annotated[bool, Field(strict=True)]


class PoolConfig(Strict):
    """A named share of the fleet. It limits the resources that its quota names, and no others."""

    name: PoolName
    """The name of the pool."""
    labels: dict[Word, Annotated[str, Field(max_length=256), AfterValidator(_one_line)]] = Field(default_factory=dict)
    """An item that names no pool gets the pool with the most of these labels, all of which it must have."""
    quota: Amounts = Field(default_factory=dict)
    """How much its items may use in the whole fleet, such as ``{CPU: 16, GPU: 4, memory: 64GiB}``."""
    cluster_quota: dict[Word, Amounts] = Field(default_factory=dict)
    """The same for each cluster that it may use, such as ``{lab: {CPU: 4}}``; instead of ``quota``."""
    cohort: Word | None = None
    """Pools of one cohort lend each other what they do not use."""
    borrow_limit: Amounts = Field(default_factory=dict)
    """How much it borrows at most; a resource that is not named has no limit."""
    lend_limit: Amounts = Field(default_factory=dict)
    """How much of its quota it lends at most; a resource that is not named has no limit."""
    protected: Flag = False
    """Its items are never preempted; so it does not borrow."""
    reclaim: Literal["never", "lower_priority", "any"] = "never"
    """Whose preemptible items may be stopped to get back what it lent."""
    priority: Annotated[LimitedPriority, Field(strict=True), AfterValidator(plain_number)] = 0
    """The priority of its items that have priority 0."""
    preemptible: Flag = False
    """Whether its items may be preempted, unless they say so themselves."""
    owners: tuple[Word, ...] = ()
    """Who may use it; empty: everybody. Items of these owners that name no pool get it, unless labels decide."""

    @field_validator("owners", mode="before")
    @classmethod
    def _owners_are_a_list(cls, value: object) -> object:
        if isinstance(value, str):
            raise ValueError(f"expected a list, for example [{value}]")
        return value

    @model_validator(mode="after")
    def _rules_fit_together(self) -> Self:
        if self.quota and self.cluster_quota:
            raise ValueError("has quota and cluster_quota; keep one of them")
        if self.reclaim != "never" and self.cohort is None:
            raise ValueError(f"has reclaim: {self.reclaim}, which needs a cohort")
        if self.protected and any(self.borrow_limit.values()):
            raise ValueError("is protected, so it cannot borrow; leave borrow_limit out")
        return self


class PoolList(Strict):
    """Pools that are checked apart from the rest of a configuration."""

    pools: tuple[PoolConfig, ...]


def pool_problem(pools: Sequence[PoolConfig], clusters: Iterable[str]) -> tuple[tuple[str | int, ...], str] | None:
    """The first problem between valid pools: its place and a sentence."""
    known = set(clusters)
    for number, pool in enumerate(pools):
        if any(pool.name == other.name for other in pools[:number]):
            place: tuple[str | int, ...] = ("pools", number, "name")
            return place, f"pools: the name {pool.name!r} is given twice; each pool needs its own"
        for cluster in pool.cluster_quota:
            if cluster not in known:
                there = ", ".join(sorted(known))
                sentence = f"pool {pool.name}, cluster_quota: there is no cluster {cluster!r}; the clusters are {there}"
                return ("pools", number, "cluster_quota", cluster), sentence
        for other in pools[:number]:
            alike = bool(pool.cluster_quota) == bool(other.cluster_quota)
            if pool.cohort is not None and pool.cohort == other.cohort and not alike:
                sentence = (
                    f"pools {other.name} and {pool.name} of the cohort {pool.cohort} cannot lend to each other: one "
                    "has a quota for the whole fleet, the other one for each cluster"
                )
                return ("pools", number, "cohort"), sentence
    return None
