"""Shell completion: offers the ids and names that exist in the service."""

from __future__ import annotations

import re
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from ray_multicluster_scheduler.cli.service.client import Service

_LIMIT = 50
_ANSWER_S = 2.0
_SPECIAL = re.compile(r"[^\w .,/@+=-]", re.ASCII)
_SPLIT_OPTION = re.compile(r"(\s--[a-z-]+)\s=(?=\s)")

Offers = list[tuple[str, str]]


def ids(kind: str | None = None, *, states: str | None = None, words: tuple[str, ...] = ("last",)) -> Any:
    """Ids of items of this kind in these states, and words such as `last`."""

    def offer(ctx: typer.Context, incomplete: str) -> Offers:
        def items(service: Service) -> Offers:
            from ray_multicluster_scheduler.cli.service.client import api_path

            begins = incomplete or None
            rows = service.rows(api_path("items"), "items", _LIMIT, kind=kind, state=states, begins=begins)
            return [(str(row["id"]), f"{row['state']} {row['name']}") for row in rows]

        return [(word, "") for word in words if word.startswith(incomplete)] + _ask(ctx, items)

    return offer


def ids_and_codes(ctx: typer.Context, incomplete: str) -> Offers:
    """Completes the argument of `rmcs explain`: ids, and codes if the beginning is in capitals."""
    from ray_multicluster_scheduler.cli.troubleshooting import codes

    found = [(code, "") for code in codes() if code.startswith(incomplete)] if incomplete.isupper() else []
    return found + list(ids()(ctx, incomplete))


def words(*known: str) -> Any:
    """One of these."""

    def offer(incomplete: str) -> list[str]:
        return [word for word in known if word.startswith(incomplete)]

    return offer


def _listed(collection: str, offer: Callable[[dict[str, Any]], tuple[str, str]]) -> Any:
    """Rows of ``/api/v1/<collection>``; ``offer`` makes a name and a description of each."""

    def complete(ctx: typer.Context, incomplete: str) -> Offers:
        def rows(service: Service) -> Offers:
            from ray_multicluster_scheduler.cli.service.client import api_path

            found = map(offer, service.get(api_path(collection))[collection])
            return [(name, about) for name, about in found if name and name.startswith(incomplete)]

        return _ask(ctx, rows)

    return complete


clusters = _listed("clusters", lambda row: (str(row["name"]), str(row["state"])))
owners = _listed("owners", lambda row: (str(row["owner"]), f"{row['waiting']} waiting, {row['running']} running"))
pools = _listed("pools", lambda row: (str(row["name"]), f"{row['waiting']} waiting, {row['running']} running"))
tokens = _listed(
    "tokens", lambda row: (str(row["id"]), f"{row['user']} {','.join(row['roles'])} {row['note']}".strip())
)


def _ask(ctx: typer.Context, query: Callable[[Service], Offers]) -> Offers:
    """Ask the service; without one there is nothing to offer, and no error message may disturb the command line."""
    from ray_multicluster_scheduler.cli.service.client import connect
    from ray_multicluster_scheduler.common.exception import SchedulerError

    try:
        found = query(connect(ctx.params.get("address"), answer_s=_ANSWER_S))
    except (SchedulerError, OSError):
        return []
    return [(name, _SPECIAL.sub("·", about)) for name, about in found]  # a shell (zsh) may evaluate descriptions


def join_split_options(environ: MutableMapping[str, str]) -> None:
    """bash splits ``--cluster=ma`` into three words. Called before Typer reads them: removes the ``=``, as if a space
    had been typed."""
    words, number = _SPLIT_OPTION.subn(r"\1", environ.get("COMP_WORDS", ""))
    if number and environ.get("COMP_CWORD", "").isdigit():
        environ.update(COMP_WORDS=words, COMP_CWORD=str(int(environ["COMP_CWORD"]) - number))
