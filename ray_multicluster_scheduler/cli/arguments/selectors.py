"""Which items are meant: an id, the beginning of one, `last`, or `all`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ray_multicluster_scheduler.cli.layout.output import say
from ray_multicluster_scheduler.cli.service.client import path_of

if TYPE_CHECKING:
    from ray_multicluster_scheduler.cli.service.client import Service

LAST, ALL = "last", "all"
KINDS = ("task", "actor", "job", "gang")
WAITING = ("PENDING", "QUEUED", "RETRYING")
UNFINISHED = ("PENDING", "QUEUED", "DISPATCHING", "RUNNING", "RETRYING", "LOST")
STATES = (*UNFINISHED, "SUCCEEDED", "FAILED", "CANCELLED")
_MOST_NAMED = 5
_PAGE = 1000


def find_one(service: Service, said: str, kind: str | None = None) -> str:
    """The id of the item that is meant. Raises UnknownItemError if there is none, ConfigurationError if there are
    several."""
    from ray_multicluster_scheduler.common.exception import UnknownItemError

    if said == LAST:
        rows = service.rows(path_of("items"), "items", 1, kind=kind)
        if not rows:
            raise UnknownItemError(f"There is no {kind or 'item'} yet.", next_step="submit one")
        return str(rows[0]["id"])
    path = path_of("items", said)
    try:
        found = service.get(path)
    except UnknownItemError:
        return _by_beginning(service, said, kind)
    if kind is not None and found.get("kind", kind) != kind:
        raise UnknownItemError(
            f"{said} is a {found['kind']}, not a {kind}.", task_id=said, next_step=f"use `rmcs task show {said}`"
        )
    return str(found["id"])


def find_several(
    service: Service, said: Sequence[str], kind: str | None = None, states: Sequence[str] = UNFINISHED
) -> list[str]:
    """The same for many; ``all`` are those in these states, however many there are."""
    if list(said) == [ALL]:
        return _all_in(service, kind, states)
    return list(dict.fromkeys(find_one(service, one, kind) for one in said))


def _all_in(service: Service, kind: str | None, states: Sequence[str]) -> list[str]:
    """Page by page to the end; of each only the id is kept."""
    from ray_multicluster_scheduler.cli.terminal.status_line import Meanwhile

    found: list[str] = []
    after: str | None = None
    with Meanwhile() as reason:
        while True:
            page = service.get(path_of("items"), kind=kind, state=",".join(states), after=after, limit=_PAGE)
            found += [str(row["id"]) for row in page["items"]]
            after = page["after"]
            if after is None:
                return found
            reason.show(f"{len(found):,} items so far")


def doubt_cluster(service: Service, name: str) -> None:
    """Say so if there is no such cluster (now): one that is gone can have items still, a slip of the hand has none."""
    from difflib import get_close_matches

    names = [str(row["name"]) for row in service.get(path_of("clusters"))["clusters"]]
    if name not in names:
        close = get_close_matches(name, names, 1)
        meant = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(names)}"
        say(f"there is no cluster {name!r} now; {meant}")


def _by_beginning(service: Service, said: str, kind: str | None) -> str:
    from ray_multicluster_scheduler.common.exception import ConfigurationError, UnknownItemError

    rows: list[dict[str, Any]] = service.rows(path_of("items"), "items", _MOST_NAMED + 1, kind=kind, begins=said)
    what = kind or "item"
    if not rows:
        raise UnknownItemError(
            f"There is no {what} {said!r}, and none whose id begins so.",
            task_id=said,
            next_step=f"see `rmcs {'job' if kind == 'job' else 'actor' if kind == 'actor' else 'task'} list`",
        )
    if len(rows) > 1:
        named = ", ".join(str(row["id"]) for row in rows[:_MOST_NAMED])
        more = " and more" if len(rows) > _MOST_NAMED else ""
        raise ConfigurationError(f"Several ids begin with {said!r}: {named}{more}.", next_step="give more of it")
    return str(rows[0]["id"])
