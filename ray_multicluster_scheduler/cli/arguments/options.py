"""Options that several commands share, and those of `ray job`, for scripts in which only the program's name changes."""

from __future__ import annotations

import functools
import inspect
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import typer

from ray_multicluster_scheduler.cli.arguments import completion
from ray_multicluster_scheduler.cli.arguments.selectors import KINDS, UNFINISHED
from ray_multicluster_scheduler.cli.service.client import Address, Service, connect

MAX_INTERVAL_S = 86_400
CONFIG_HELP = "A clusters.yaml; default: of RMCS_CONFIG, RMCS_CLUSTERS, this folder, RMCS_HOME or /etc/rmcs."
Config = Annotated[Path | None, typer.Option("--config", help=CONFIG_HELP)]
StateFolder = Annotated[Path | None, typer.Option("--state", help="Its state folder; default: RMCS_HOME, or ~/.rmcs.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; shown to other users.")]
Limit = Annotated[int, typer.Option("--limit", min=1, help="At most so many.")]
ByOwner = Annotated[str | None, typer.Option("--owner", help="Only of this owner.", autocompletion=completion.owners)]
OfKind = Annotated[
    str | None,
    typer.Option(
        "--kind", help="Only of this kind: task, actor, job or gang.", autocompletion=completion.words(*KINDS)
    ),
]
ReplaceFiles = Annotated[bool, typer.Option("--force", help="Replace existing files.")]
Timeout = Annotated[float | None, typer.Option("--timeout", min=0, help="Wait at most so many seconds.")]
Follow = Annotated[bool, typer.Option("-f", "--follow", help="Follow the output until its end.")]
Tail = Annotated[int | None, typer.Option("--tail", min=0, help="Of earlier output, only the last so many lines.")]
CancelOnInterrupt = Annotated[
    bool, typer.Option("--cancel-on-interrupt", help="Ctrl+C cancels it; without this, it continues.")
]


def item_argument(kind: str | None = None, metavar: str = "ID") -> Any:
    """The argument that names one item."""
    text = "An id, the beginning of one, or `last`."
    return typer.Argument(metavar=metavar, help=text, autocompletion=completion.ids(kind))


def items_argument(
    all_means: str, kind: str | None = None, *, states: tuple[str, ...] = UNFINISHED, names: str = ""
) -> Any:
    """The argument that names several items; `all` means those that are described by ``all_means``."""
    offered = completion.ids(kind, states=",".join(states), words=("last", "all"))
    text = f"Ids, beginnings of ids, {names}`last`, or `all` {all_means}."
    return typer.Argument(metavar="ID", help=text, autocompletion=offered)


class JobService(NamedTuple):
    """The service that the options of a job command name, with the token and the CA file that they set, if any."""

    service: Service
    token: str | None
    tls_ca: str | None


def with_ray_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command, whose first parameter is a JobService, the options of `ray job` and --address instead of that.
    The command raises ConfigurationError for what they cannot mean."""
    ray_options = inspect.signature(_connect_with, eval_str=True).parameters

    @functools.wraps(command)
    def run(**options: Any) -> None:
        given = {name: options.pop(name) for name in ray_options}
        command(_connect_with(**given), **options)

    signature = inspect.signature(command, eval_str=True)
    parameters = [*list(signature.parameters.values())[1:], *ray_options.values()]
    keywords = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
    run.__signature__ = signature.replace(parameters=keywords)  # type: ignore[attr-defined]  # Typer reads this
    run.__annotations__ = {one.name: one.annotation for one in keywords}
    return run


def _connect_with(
    address: Address = None,
    verify: Annotated[
        str,
        typer.Option("--verify", help="As in `ray job`: a file with certificates to trust (RMCS_TLS_CA); not `false`."),
    ] = "true",
    headers: Annotated[
        str | None, typer.Option("--headers", help="As in `ray job`, as JSON; only Authorization is sent (RMCS_TOKEN).")
    ] = None,
    log_style: Annotated[
        Literal["auto", "record", "pretty"],
        typer.Option("--log-style", hidden=True, help="For scripts of `ray job`; only record counts: no colours."),
    ] = "auto",
    log_color: Annotated[
        Literal["auto", "false", "true"],
        typer.Option("--log-color", hidden=True, help="For scripts of `ray job`; only false counts: no colours."),
    ] = "auto",
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Log to stderr.")] = False,
) -> JobService:
    if log_style == "record" or log_color == "false":
        os.environ["NO_COLOR"] = "1"
    if verbose:
        from ray_multicluster_scheduler.common.logging import configure

        configure("INFO")
    token, tls_ca = _token_of(headers), _ca_file(verify)
    return JobService(connect(address, token=token, tls_ca=tls_ca), token, tls_ca)


def _ca_file(verify: str) -> str | None:
    """A file; None: the CAs of the system."""
    if verify.lower() in ("true", "1", "yes"):
        return None
    if verify.lower() in ("false", "0", "no"):
        raise typer.BadParameter(
            "a service is not used without knowing who it is; name a file with its certificate.", param_hint="--verify"
        )
    return verify


def _token_of(headers: str | None) -> str | None:
    """The token in ``{"Authorization": "Bearer …"}``."""
    given = json_object(headers, "--headers")
    if given is None:
        return None
    kind, _, token = str({name.lower(): one for name, one in given.items()}.pop("authorization", "")).partition(" ")
    if len(given) != 1 or kind.lower() != "bearer" or not token:
        raise typer.BadParameter(
            'the only header that is sent is {"Authorization": "Bearer …"}.', param_hint="--headers"
        )
    return token


def json_object(text: str | None, option: str) -> dict[str, Any] | None:
    """The value of an option that is a JSON object. Raises BadParameter."""
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"this is no JSON: {error}.", param_hint=option) from None
    if not isinstance(value, dict):
        raise typer.BadParameter('give a JSON object, such as {"key": "value"}.', param_hint=option)
    return value
