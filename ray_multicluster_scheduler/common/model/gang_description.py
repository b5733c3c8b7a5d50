"""GangDescription: a gang is several tasks, or several actors, that start together on one cluster or not at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, Self, TypeAlias, get_args

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model.item_fields import (
    Count,
    FieldSpec,
    Flag,
    ResourceAmounts,
    Seconds,
    Text,
)
from ray_multicluster_scheduler.common.model.resources import ResourceShape, describe, shape_of, total_of

Strategy = Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]
"""Ray's strategies of placement groups: on few nodes, on many, on one, each member on a node of its own."""
STRATEGIES: tuple[str, ...] = get_args(Strategy)
MAX_MEMBERS = 500
GangShape: TypeAlias = tuple[str, str, tuple[ResourceShape, ...]]
"""Tasks or actors, the strategy, and what each member takes, sorted: all that placement uses."""


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """One task or actor of a gang: a bundle of its placement group, and what runs in there."""

    name: Annotated[Text, FieldSpec("Its name, for people.")]
    requirements: Annotated[ResourceAmounts, FieldSpec("Its bundle of the placement group.")]
    function_digest: Annotated[Text, FieldSpec("The payload that holds its pickled code.")]
    arguments_digest: Annotated[Text, FieldSpec("The payload that holds its pickled arguments.")]
    arguments_bytes: Annotated[Count, FieldSpec("How large its pickled arguments are.")] = 0
    objects: Annotated[Count, FieldSpec("How many of the item's values are its own, in the order of the members.")] = 0
    asynchronous: Annotated[Flag, FieldSpec("The class of an actor has `async def` methods.")] = False

    def __post_init__(self) -> None:
        if not any(amount > 0 for amount in self.requirements.values()):
            raise ConfigurationError(
                f"The member {self.name} of a gang requests nothing, so no resources can be reserved for it.",
                next_step='leave its resource_requirements out (1 CPU), or request a part: {"CPU": 0.1}',
            )

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        return cls(**data)


@dataclass(frozen=True, slots=True)
class GangDescription:
    """The part of an item that only a gang has. It is all tasks or all actors."""

    members: Annotated[tuple[MemberDescription, ...], FieldSpec("The tasks or actors that start together.")]
    strategy: Annotated[Strategy, FieldSpec("How Ray spreads the members over nodes.")] = "PACK"
    of: Annotated[Literal["task", "actor"], FieldSpec("What its members are.")] = "task"
    ready_timeout: Annotated[
        Seconds | None,
        FieldSpec(
            "Of a gang of actors: seconds from when a cluster took it until all constructors are done.", ("gang",)
        ),
    ] = 300.0

    def __post_init__(self) -> None:
        if not self.members:
            raise ConfigurationError("A gang has no members.", next_step="give it at least one: member(f, …)")
        if len(self.members) > MAX_MEMBERS:
            raise ConfigurationError(
                f"A gang has {len(self.members)} members, and at most {MAX_MEMBERS} can start together.",
                next_step="submit what need not start together as tasks of their own",
            )
        if self.strategy not in STRATEGIES:
            known = ", ".join(STRATEGIES)
            raise ConfigurationError(f"strategy is {self.strategy!r}.", next_step=f"give one of {known}")
        if self.ready_timeout is not None and not self.ready_timeout > 0:
            raise ConfigurationError(
                f"ready_timeout is {self.ready_timeout!r}.", next_step="give seconds above 0, or None for no limit"
            )

    @property
    def total(self) -> dict[str, float]:
        """The resources of all members together."""
        return total_of(member.requirements for member in self.members)

    @property
    def shape(self) -> GangShape:
        """Gangs of one shape are interchangeable for placement."""
        return self.of, self.strategy, tuple(sorted(shape_of(member.requirements) for member in self.members))

    def describe(self) -> str:
        """One phrase for people: ``3 members (2 × 1 CPU, 1 × 4 CPU; PACK)``."""
        kinds = Counter(shape_of(member.requirements) for member in self.members)
        amounts = ", ".join(f"{number} × {describe(dict(shape))}" for shape, number in sorted(kinds.items()))
        number = len(self.members)
        return f"{number} member{'s' if number > 1 else ''} ({amounts}; {self.strategy})"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        return cls(**{**data, "members": tuple(MemberDescription.from_dict(one) for one in data["members"])})
