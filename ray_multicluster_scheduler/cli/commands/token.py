"""`rmcs token`: who may use a service, and as what."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from ray_multicluster_scheduler.cli.arguments import completion
from ray_multicluster_scheduler.cli.arguments.usage_errors import check_known
from ray_multicluster_scheduler.cli.layout.output import Format, Output, emit, say
from ray_multicluster_scheduler.cli.layout.table import MOST_OF_A_SENTENCE, FittingTable
from ray_multicluster_scheduler.cli.layout.times import ago, iso, seconds_of
from ray_multicluster_scheduler.cli.service.client import Address, connect, path_of

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Make, list and revoke tokens of a service.")
_ROLES = ("viewer", "submitter", "operator", "admin")
TITLES = ("ID", "USER", "ROLES", "CREATED", "EXPIRES", "NOTE")


@app.command()
def create(
    user: Annotated[str, typer.Argument(metavar="USER", help="Whose it is: the owner of what is submitted with it.")],
    role: Annotated[list[str], typer.Option("--role", help="viewer, submitter, operator or admin; may be repeated.")],
    note: Annotated[str, typer.Option("--note", help="What it is for.")] = "",
    expires: Annotated[str | None, typer.Option("--expires", help="Good for so long: 90m, 12h or 30d.")] = None,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Make a token, and print it once.

    It is kept nowhere: the service has only its hash.
    """
    check_known("--role", role, _ROLES)
    said = {"user": user, "roles": role, "note": note, "expires_at": _moment(expires)}
    made = connect(address).post(path_of("tokens"), said)
    until = "" if made["expires_at"] is None else f" until {iso(made['expires_at'])}"
    say(f"{made['id']}: {user} is {', '.join(made['roles'])}{until}; it is shown only now")
    emit(made, output, lambda: str(made["token"]))


@app.command("list")
def list_tokens(output: Output = Format.table, address: Address = None) -> None:
    """List the tokens of a service, oldest first.

    What one needs to use them is not shown.
    """
    rows = connect(address).get(path_of("tokens"))["tokens"]
    emit(rows, output, lambda: tokens_table(rows, time.time()))


@app.command()
def revoke(
    token_id: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="The id of a token, as `rmcs token list` shows it.",
            autocompletion=completion.tokens,
        ),
    ],
    force: Annotated[bool, typer.Option("--force", help="Even if it is the last one of an admin.")] = False,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Revoke a token: nobody gets in with it any more.

    Who is in with it is put out.
    """
    gone = connect(address).delete(path_of("tokens", token_id), force=force)
    say(f"{gone['id']} of {gone['user']} lets nobody in any more")
    emit(gone, output, lambda: str(gone["id"]))


def tokens_table(rows: Sequence[dict[str, Any]], now: float) -> FittingTable:
    """Rows of ``/api/v1/tokens``."""
    cells = [_cells(row, now) for row in rows]
    return FittingTable(
        TITLES, cells, cut=("USER", "NOTE"), drop=("CREATED", "NOTE"), most={"NOTE": MOST_OF_A_SENTENCE}
    )


def _cells(row: dict[str, Any], now: float) -> tuple[str, ...]:
    expires = "never" if row["expires_at"] is None else ago(row["expires_at"], now)
    roles, created = ",".join(row["roles"]), ago(row["created_at"], now)
    return row["id"], row["user"], roles, created, f"{expires} (over)" if row["expired"] else expires, row["note"]


def _moment(text: str | None) -> float | None:
    """When so long from now is over."""
    if text is None:
        return None
    lasts_s = seconds_of(text)
    if lasts_s is None:
        raise typer.BadParameter(f"{text!r} is no time; write 30s, 90m, 12h or 30d.", param_hint="--expires")
    return time.time() + lasts_s
