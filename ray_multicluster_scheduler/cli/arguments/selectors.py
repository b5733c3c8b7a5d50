"""Finds items by an id, the beginning of one, `last` or `all`."""

from __future__ import annotations

from collections.abc import Sequence

from ray_multicluster_scheduler.cli.layout.output import Spinner, notify
from ray_multicluster_scheduler.cli.service.client import Service, api_path
from ray_multicluster_scheduler.common.exception import ConfigurationError, UnknownItemError

LAST, ALL = "last", "all"
KINDS = ("task", "actor", "job", "gang")
WAITING = ("PENDING", "QUEUED", "RETRYING")
UNFINISHED = ("PENDING", "QUEUED", "DISPATCHING", "RUNNING", "PREEMPTING", "RETRYING", "LOST")
STATES = (*UNFINISHED, "SUCCEEDED", "FAILED", "CANCELLED")
_MAX_NAMED = 5
_PAGE = 1000


def find_item(service: Service, selector: str, kind: str | None = None) -> str:
    """The id of one item. Raises UnknownItemError if there is none, ConfigurationError if there are several."""
    if selector == LAST:
        rows = service.rows(api_path("items"), "items", 1, kind=kind)
        if not rows:
            raise UnknownItemError(f"There is no {kind or 'item'} yet.", next_step="submit one")
        return str(rows[0]["id"])
    path = api_path("items", selector)
    try:
        found = service.get(path)
    except UnknownItemError:
        return _find_by_prefix(service, selector, kind)
    if kind is not None and found.get("kind", kind) != kind:
        raise UnknownItemError(
            f"{selector} is a {found['kind']}, not a {kind}.",
            task_id=selector,
            next_step=f"use `rmcs task show {selector}`",
        )
    return str(found["id"])


def find_items(
    service: Service, selectors: Sequence[str], kind: str | None = None, states: Sequence[str] = UNFINISHED
) -> list[str]:
    """The ids of several items; ``all`` means all in these states, on all pages."""
    if list(selectors) != [ALL]:
        return list(dict.fromkeys(find_item(service, one, kind) for one in selectors))
    found: list[str] = []
    after: str | None = None
    with Spinner() as progress:
        while True:
            page = service.get(api_path("items"), kind=kind, state=",".join(states), after=after, limit=_PAGE)
            found += [str(row["id"]) for row in page["items"]]
            after = page["after"]
            if after is None:
                return found
            progress.show(f"{len(found):,} items so far")


def warn_if_unknown_cluster(service: Service, name: str) -> None:
    """Print a message if there is no such cluster now. It is no error: a cluster that was removed may have items."""
    from difflib import get_close_matches

    names = [str(row["name"]) for row in service.get(api_path("clusters"))["clusters"]]
    if name not in names:
        close = get_close_matches(name, names, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(names)}"
        notify(f"there is no cluster {name!r} now; {hint}")


def _find_by_prefix(service: Service, prefix: str, kind: str | None) -> str:
    rows = service.rows(api_path("items"), "items", _MAX_NAMED + 1, kind=kind, begins=prefix)
    if not rows:
        raise UnknownItemError(
            f"There is no {kind or 'item'} {prefix!r}, and none whose id begins with it.",
            task_id=prefix,
            next_step=f"see `rmcs {kind if kind in ('job', 'actor') else 'task'} list`",
        )
    if len(rows) > 1:
        named = ", ".join(str(row["id"]) for row in rows[:_MAX_NAMED])
        more = " and more" if len(rows) > _MAX_NAMED else ""
        raise ConfigurationError(f"Several ids begin with {prefix!r}: {named}{more}.", next_step="give more characters")
    return str(rows[0]["id"])
