"""submit_gang: tasks or actors that start together on one cluster, on the shared scheduler."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from ray_multicluster_scheduler.app.client_api.execution_context import side
from ray_multicluster_scheduler.app.client_api.gangs.member import GangMember, member

if TYPE_CHECKING:
    from ray_multicluster_scheduler.app.client_api.options import GangOptions
    from ray_multicluster_scheduler.common.model.gang_description import Strategy

__all__ = ["GangMember", "member", "submit_gang", "submit_gang_async"]


def submit_gang(
    members: Iterable[Any],
    *,
    strategy: Strategy = "PACK",
    tags: Sequence[str] | None = None,
    **options: Unpack[GangOptions],
) -> list[Any]:
    """Start all members together on one cluster, in one placement group, or none of them.

    ``members`` are made with ``member(f, 1, 2, resource_requirements={"CPU": 2})``; ``strategy`` is Ray's: PACK,
    SPREAD, STRICT_PACK or STRICT_SPREAD. Options are those of tasks, and hold for the gang as one item.

    Of functions it waits for all and returns the list of their values, in the members' order; the first one that fails
    ends the others, and what it raised is raised here. Of classes it waits until all actors are ready and returns
    their handles; the end of one of them is the end of all. Raises SchedulerError.
    """
    return side().submit_gang(members, strategy=strategy, tags=tags, **options)


def submit_gang_async(
    members: Iterable[Any],
    *,
    strategy: Strategy = "PACK",
    tags: Sequence[str] | None = None,
    **options: Unpack[GangOptions],
) -> Any:
    """The same without waiting: of functions one TaskHandle, whose result is the list; of classes the list of the
    actors' handles, which take calls at once."""
    return side().submit_gang_async(members, strategy=strategy, tags=tags, **options)
