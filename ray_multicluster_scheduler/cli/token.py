"""`rmcs token`: who may use a service, and as what."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from ray_multicluster_scheduler.cli.output import Format, Output, emit, plain_table, say
from ray_multicluster_scheduler.cli.service import Address, connect, path_of
from ray_multicluster_scheduler.cli.times import ago, iso, seconds_of

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Make, list and revoke tokens of a service.")
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
    emit(rows, output, lambda: plain_table(TITLES, [_cells(row) for row in rows]))


@app.command()
def revoke(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="The id of a token, as `rmcs token list` shows it.")],
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


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    now = time.time()
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
