"""ActorDescription: the fields of an item that only an actor has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal, Self

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model.item_fields import (
    Concurrency,
    FieldSpec,
    Flag,
    Name,
    ResourceAmounts,
    Restarts,
    Seconds,
)

Lifetime = Literal["detached"]
_ACTOR = ("actor",)
ACTOR_NAMESPACE = "rmcs"
"""Ray's namespace of every actor of ours that was made outside of its cluster."""


@dataclass(frozen=True, slots=True)
class ActorDescription:
    """The part of an item that only an actor has."""

    ray_name: Annotated[Name, FieldSpec("Its name in our namespace of Ray, in the cluster.")]
    placement: Annotated[
        ResourceAmounts,
        FieldSpec(
            "What must be free where it is placed; once it is ready it holds its requirements, by default nothing."
        ),
    ] = field(default_factory=dict)
    public_name: Annotated[
        Name | None, FieldSpec("The name by which `get_actor` finds it; unique among living actors.")
    ] = None
    max_restarts: Annotated[
        Restarts, FieldSpec("How often it is restarted, without its state, after it died; -1: always.", _ACTOR)
    ] = 0
    restart_elsewhere: Annotated[
        Flag, FieldSpec("It may be restarted on any cluster, not only on its own.", _ACTOR)
    ] = False
    lifetime: Annotated[Lifetime | None, FieldSpec("detached: it outlives its program.", _ACTOR)] = None
    max_concurrency: Annotated[
        Concurrency | None, FieldSpec("The most calls at once, in threads (in coroutines for async methods).", _ACTOR)
    ] = None
    ready_timeout: Annotated[
        Seconds | None,
        FieldSpec("Seconds from when a cluster took it until its constructor is done; then it is ended.", _ACTOR),
    ] = 300.0
    adopt: Annotated[Flag, FieldSpec("It exists already, detached, and is only looked up.")] = False
    asynchronous: Annotated[Flag, FieldSpec("Its class has `async def` methods.")] = False
    relay: Annotated[Flag, FieldSpec("It only passes calls on to actors that were made inside its cluster.")] = False

    def __post_init__(self) -> None:
        if self.lifetime not in (None, "detached"):
            raise ConfigurationError(f"lifetime is {self.lifetime!r}.", next_step='give "detached", or nothing')
        if self.max_restarts < -1:
            raise ConfigurationError(
                f"max_restarts is {self.max_restarts!r}.", next_step="give 0 or more, or -1 for no limit"
            )
        if self.detached and self.restart_elsewhere:
            raise ConfigurationError(
                'lifetime="detached" and restart_elsewhere=True exclude each other: a detached actor may live on in a '
                "cluster that cannot be reached, so another one must not be made elsewhere.",
                next_step="drop one of the two",
            )
        if self.detached and self.public_name is None:
            raise ConfigurationError(
                "A detached actor needs a name, by which it is found again.", next_step="give it a name"
            )
        if self.ready_timeout is not None and not self.ready_timeout > 0:
            raise ConfigurationError(
                f"ready_timeout is {self.ready_timeout!r}.", next_step="give seconds above 0, or None for no limit"
            )
        if self.max_concurrency is not None and self.max_concurrency < 1:
            raise ConfigurationError(f"max_concurrency is {self.max_concurrency!r}.", next_step="give 1 or more")

    @property
    def detached(self) -> bool:
        """Whether it outlives its program."""
        return self.lifetime == "detached"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        return cls(**data)
