"""`rmcs token`: the access tokens of a service, with their users and roles."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from ray_multicluster_scheduler.cli.arguments import completion
from ray_multicluster_scheduler.cli.arguments.usage_errors import check_choices
from ray_multicluster_scheduler.cli.layout.output import Format, Output, emit, notify
from ray_multicluster_scheduler.cli.layout.table import MAX_SENTENCE, FittingTable
from ray_multicluster_scheduler.cli.layout.times import ago, iso, parse_duration
from ray_multicluster_scheduler.cli.service.client import Address, api_path, connect

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Create, list and revoke tokens of a service.")
_ROLES = ("viewer", "submitter", "operator", "admin")
TITLES = ("ID", "USER", "ROLES", "CREATED", "EXPIRES", "NOTE")


@app.command()
def create(
    user: Annotated[str, typer.Argument(metavar="USER", help="Its user: the owner of items submitted with it.")],
    role: Annotated[list[str], typer.Option("--role", help="viewer, submitter, operator or admin; may be repeated.")],
    note: Annotated[str, typer.Option("--note", help="A note on its use.")] = "",
    expires: Annotated[str | None, typer.Option("--expires", help="Expires after 90m, 12h or 30d.")] = None,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Create a token, and print it once.

    It cannot be shown again: the service stores only its hash.
    """
    check_choices("--role", role, _ROLES)
    seconds = None if expires is None else parse_duration(expires)
    if seconds is None and expires is not None:
        raise typer.BadParameter(f"{expires!r} is no duration; write 30s, 90m, 12h or 30d.", param_hint="--expires")
    body = {"user": user, "roles": role, "note": note, "expires_at": seconds and time.time() + seconds}
    made = connect(address).post(api_path("tokens"), body)
    until = "" if made["expires_at"] is None else f" until {iso(made['expires_at'])}"
    notify(f"{made['id']}: {user} is {', '.join(made['roles'])}{until}; it is shown only now")
    emit(made, output, lambda: str(made["token"]))


@app.command("list")
def list_tokens(output: Output = Format.table, address: Address = None) -> None:
    """List the tokens of a service, oldest first.

    The secrets themselves are not shown.
    """
    rows = connect(address).get(api_path("tokens"))["tokens"]
    emit(rows, output, lambda: tokens_table(rows, time.time()))


@app.command()
def revoke(
    token_id: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="The id of a token, as `rmcs token list` shows it.", autocompletion=completion.tokens
        ),
    ],
    force: Annotated[bool, typer.Option("--force", help="Even if it is the last one of an admin.")] = False,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Revoke a token.

    Sessions that use it are closed.
    """
    revoked = connect(address).delete(api_path("tokens", token_id), force=force)
    notify(f"{revoked['id']} of {revoked['user']} is revoked")
    emit(revoked, output, lambda: str(revoked["id"]))


def tokens_table(rows: Sequence[dict[str, Any]], now: float) -> FittingTable:
    """Rows of ``/api/v1/tokens``."""
    return FittingTable(
        TITLES,
        [_cells(row, now) for row in rows],
        cut=("USER", "NOTE"),
        drop=("CREATED", "NOTE"),
        most={"NOTE": MAX_SENTENCE},
    )


def _cells(row: dict[str, Any], now: float) -> tuple[str, ...]:
    expires = "never" if row["expires_at"] is None else ago(row["expires_at"], now)
    roles, created = ",".join(row["roles"]), ago(row["created_at"], now)
    return row["id"], row["user"], roles, created, f"{expires} (over)" if row["expired"] else expires, row["note"]
