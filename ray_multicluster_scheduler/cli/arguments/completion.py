"""What a shell offers when Tab is pressed: ids and names that there are now."""

from __future__ import annotations

import re
from collections.abc import Callable, MutableMapping
from typing import Any

import typer

_MOST = 50
_PATIENCE_S = 2.0
_PLAIN = re.compile(r"[^\w .,/@+=-]", re.ASCII)
_SPLIT = re.compile(r"(\s--[a-z-]+)\s=(?=\s)")

Offered = list[tuple[str, str]]


def ids(kind: str | None = None, *, states: str | None = None, words: tuple[str, ...] = ("last",)) -> Any:
    """Of items of this kind in these states, and the words that stand for some."""

    def offer(ctx: typer.Context, incomplete: str) -> Offered:
        def ask() -> Offered:
            from ray_multicluster_scheduler.cli.service.client import connect, path_of

            service = connect(ctx.params.get("address"), answer_s=_PATIENCE_S)
            rows = service.rows(path_of("items"), "items", _MOST, kind=kind, state=states, begins=incomplete or None)
            return [(str(row["id"]), _plain(f"{row['state']} {row['name']}")) for row in rows]

        return [(word, "") for word in words if word.startswith(incomplete)] + _quietly(ask)

    return offer


def ids_and_codes(ctx: typer.Context, incomplete: str) -> Offered:
    """What can be explained: codes for whoever has begun to write one."""
    from ray_multicluster_scheduler.cli.troubleshooting import codes

    found = [(code, "") for code in codes() if code.startswith(incomplete)] if incomplete.isupper() else []
    return found + list(ids()(ctx, incomplete))


def words(*known: str) -> Any:
    """One of these."""

    def offer(incomplete: str) -> list[str]:
        return [word for word in known if word.startswith(incomplete)]

    return offer


def clusters(ctx: typer.Context, incomplete: str) -> Offered:
    """Names of clusters."""

    def ask() -> Offered:
        from ray_multicluster_scheduler.cli.service.client import connect, path_of

        rows = connect(ctx.params.get("address"), answer_s=_PATIENCE_S).get(path_of("clusters"))["clusters"]
        return [(str(row["name"]), str(row["state"])) for row in rows if str(row["name"]).startswith(incomplete)]

    return _quietly(ask)


def owners(ctx: typer.Context, incomplete: str) -> Offered:
    """Names of those who have items that are not over, or limits."""

    def ask() -> Offered:
        from ray_multicluster_scheduler.cli.service.client import connect, path_of

        rows = connect(ctx.params.get("address"), answer_s=_PATIENCE_S).get(path_of("owners"))["owners"]
        names = [(str(row["owner"]), f"{row['waiting']} waiting, {row['running']} running") for row in rows]
        return [(name, about) for name, about in names if name and name.startswith(incomplete)]

    return _quietly(ask)


def tokens(ctx: typer.Context, incomplete: str) -> Offered:
    """Ids of tokens, and whose they are; to whoever may see them."""

    def ask() -> Offered:
        from ray_multicluster_scheduler.cli.service.client import connect, path_of

        rows = connect(ctx.params.get("address"), answer_s=_PATIENCE_S).get(path_of("tokens"))["tokens"]
        known = [(str(row["id"]), _plain(f"{row['user']} {','.join(row['roles'])} {row['note']}")) for row in rows]
        return [(one, about.strip()) for one, about in known if one.startswith(incomplete)]

    return _quietly(ask)


def _quietly(ask: Callable[[], Offered]) -> Offered:
    """Nothing is written between what a person types: without a service there is just nothing to offer."""
    from ray_multicluster_scheduler.common.exception import SchedulerError

    try:
        return ask()
    except (SchedulerError, OSError):
        return []


def _plain(text: str) -> str:
    """Words of others that a shell may evaluate (zsh does) have nothing in them that means something to it."""
    return _PLAIN.sub("·", text)


def as_one_word(environ: MutableMapping[str, str]) -> None:
    """bash takes ``--cluster=ma`` for three words. Called before Typer reads them: without the middle one they are as
    if a space had been typed."""
    words, number = _SPLIT.subn(r"\1", environ.get("COMP_WORDS", ""))
    if number and environ.get("COMP_CWORD", "").isdigit():
        environ.update(COMP_WORDS=words, COMP_CWORD=str(int(environ["COMP_CWORD"]) - number))
