"""GangMember and `member`: one task or actor of a gang. Standard library only, since clusters may load it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ray_multicluster_scheduler.common.exception import ConfigurationError


@dataclass(frozen=True, slots=True)
class GangMember:
    """A function or class, its arguments, and its resources (default: 1 CPU)."""

    target: Any
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    resource_requirements: Mapping[str, Any] | None = None


def member(
    target: Any, /, *args: Any, resource_requirements: Mapping[str, Any] | None = None, **kwargs: Any
) -> GangMember:
    """Make a member of a gang: ``target(*args, **kwargs)`` with these resources. For a target with a parameter called
    ``resource_requirements`` use GangMember."""
    return GangMember(target, args, kwargs, resource_requirements)


def as_member(given: Any, index: int) -> GangMember:
    """Convert a plain function or class to a member without arguments. Raises ConfigurationError."""
    made = given if isinstance(given, GangMember) else GangMember(given)
    target = made.target
    if not callable(target):
        raise ConfigurationError(
            f"Member {index} of the gang is {target!r} ({type(target).__name__}), neither a function nor a class.",
            next_step="write member(f, 1, 2) for f(1, 2), not f(1, 2) itself",
        )
    return made
