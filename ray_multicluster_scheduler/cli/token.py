"""`rmcs token`: who may use a service, and as what."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from ray_multicluster_scheduler.cli.service import AddressOption, Output, OutputOption, ask, echo_json

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Make, list and revoke tokens of a service.")
TITLES = ("ID", "USER", "ROLES", "CREATED", "EXPIRES", "NOTE")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


@app.command()
def create(
    user: Annotated[str, typer.Argument(metavar="USER", help="Whose it is: the owner of what is submitted with it.")],
    role: Annotated[
        list[str], typer.Option("--role", help="viewer, submitter, operator or admin; may be given again.")
    ],
    note: Annotated[str, typer.Option("--note", help="What it is for.")] = "",
    expires: Annotated[
        str | None, typer.Option("--expires", help="How long it is good, such as 90m, 12h or 30d.")
    ] = None,
    output: OutputOption = Output.table,
    address: AddressOption = None,
) -> None:
    """Make a token. It is shown once, on stdout, and kept nowhere: the service has only its hash."""
    said = {"user": user, "roles": role, "note": note, "expires_at": _moment(expires)}
    made = ask(address, "POST", "/api/v1/tokens", said)
    if output is Output.json:
        echo_json(made)
        return
    until = "" if made["expires_at"] is None else f" until {_time(made['expires_at'])}"
    typer.echo(f"rmcs: {made['id']}: {user} is {', '.join(made['roles'])}{until}; it is shown only now", err=True)
    typer.echo(made["token"])


@app.command("list")
def list_tokens(output: OutputOption = Output.table, address: AddressOption = None) -> None:
    """List the tokens of a service, oldest first; never what one needs to use them."""
    rows = ask(address, "GET", "/api/v1/tokens")["tokens"]
    if output is Output.json:
        echo_json(rows)
        return
    from ray_multicluster_scheduler.cli.output import console, plain_table

    console().print(plain_table(TITLES, [_cells(row) for row in rows]))


@app.command()
def revoke(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="As `rmcs token list` shows it.")],
    force: Annotated[bool, typer.Option("--force", help="Although it is the last one of an admin.")] = False,
    address: AddressOption = None,
) -> None:
    """Let nobody in with a token any more; who is in with it is put out."""
    from urllib.parse import quote

    path = f"/api/v1/tokens/{quote(token_id, safe='')}?force={str(force).lower()}"
    gone = ask(address, "DELETE", path)
    typer.echo(f"rmcs: {gone['id']} of {gone['user']} lets nobody in any more", err=True)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    expires = "never" if row["expires_at"] is None else _time(row["expires_at"])
    roles, created = ",".join(row["roles"]), _time(row["created_at"])
    return row["id"], row["user"], roles, created, f"{expires} (over)" if row["expired"] else expires, row["note"]


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _moment(text: str | None) -> float | None:
    """When so long from now is over."""
    if text is None:
        return None
    try:
        lasts_s = float(text[:-1]) * _UNITS[text[-1:]]
    except (ValueError, KeyError):
        lasts_s = 0.0
    if not 0 < lasts_s < 100 * 365 * 86_400:
        raise typer.BadParameter(f"{text!r} is no time; write 30s, 90m, 12h or 30d.", param_hint="--expires")
    return time.time() + lasts_s
