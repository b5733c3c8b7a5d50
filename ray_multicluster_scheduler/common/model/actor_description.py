"""What is special about an actor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model.resources import Resources

Lifetime = Literal["detached"]
ACTOR_NAMESPACE = "rmcs"
"""Ray's namespace of every actor of ours that was made outside of its cluster."""


@dataclass(frozen=True, slots=True)
class ActorDescription:
    """The part of an item that only an actor has.

    ``placement`` is what must be free where it is placed; once it is ready it holds the item's ``requirements`` (by
    default 1 CPU and nothing, as in Ray). It is restarted ``max_restarts`` times (-1: always), on its own cluster
    unless ``restart_elsewhere``. ``ray_name`` is its name in our namespace in the cluster. ``adopt``: it exists
    already, detached, and is only looked up. ``asynchronous``: its class has ``async def`` methods.
    """

    ray_name: str
    placement: Resources = field(default_factory=dict)
    public_name: str | None = None
    max_restarts: int = 0
    restart_elsewhere: bool = False
    lifetime: Lifetime | None = None
    max_concurrency: int | None = None
    ready_timeout: float | None = 300.0
    adopt: bool = False
    asynchronous: bool = False

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
                "cluster that nobody can reach, so another one must not be made elsewhere.",
                next_step="drop one of the two",
            )
        if self.detached and self.public_name is None:
            raise ConfigurationError(
                "A detached actor has no name, so nobody could find it again.", next_step="give it a name"
            )
        if self.ready_timeout is not None and not self.ready_timeout > 0:
            raise ConfigurationError(
                f"ready_timeout is {self.ready_timeout!r}.", next_step="give seconds above 0, or None for no limit"
            )
        if self.max_concurrency is not None and self.max_concurrency < 1:
            raise ConfigurationError(f"max_concurrency is {self.max_concurrency!r}.", next_step="give 1 or more")

    @property
    def detached(self) -> bool:
        """Does it outlive its program?"""
        return self.lifetime == "detached"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        return cls(**data)
