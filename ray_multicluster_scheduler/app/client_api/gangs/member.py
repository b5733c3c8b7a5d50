"""member: one task or actor of a gang, as a program gives it. Standard library only: a cluster may load it, too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ray_multicluster_scheduler.common.exception import ConfigurationError


@dataclass(frozen=True, slots=True)
class GangMember:
    """A function and its arguments, or a class and those of its constructor, and what it needs (default: 1 CPU)."""

    target: Any
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    resource_requirements: Mapping[str, Any] | None = None


def member(
    target: Any, /, *args: Any, resource_requirements: Mapping[str, Any] | None = None, **kwargs: Any
) -> GangMember:
    """One member of a gang: ``target(*args, **kwargs)`` with these resources for itself.

    A parameter that is itself called ``resource_requirements`` can be given with GangMember.
    """
    return GangMember(target, args, kwargs, resource_requirements)


def as_member(given: Any, index: int) -> GangMember:
    """What was given; a function or class alone is one without arguments. Raises ConfigurationError."""
    made = given if isinstance(given, GangMember) else GangMember(given)
    if not callable(made.target):
        target = made.target
        raise ConfigurationError(
            f"Member {index} of the gang is {target!r} ({type(target).__name__}), neither a function nor a class.",
            next_step="write member(f, 1, 2) for f(1, 2), not f(1, 2) itself",
        )
    return made
