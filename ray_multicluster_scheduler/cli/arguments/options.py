"""Options that several commands share, and those of `ray job`, for scripts in which only the program's name changes."""

from __future__ import annotations

import functools
import inspect
import json
import os
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from ray_multicluster_scheduler.cli.arguments import completion
from ray_multicluster_scheduler.cli.arguments.selectors import KINDS, UNFINISHED
from ray_multicluster_scheduler.cli.service.client import Address, Service, connect
from ray_multicluster_scheduler.common.exception import ConfigurationError

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
Follow = Annotated[bool, typer.Option("-f", "--follow", help="Follow the output until it is over.")]
Tail = Annotated[int | None, typer.Option("--tail", min=0, help="Of earlier output, only the last so many lines.")]
CancelOnInterrupt = Annotated[
    bool, typer.Option("--cancel-on-interrupt", help="Ctrl+C cancels it; without this, it continues.")
]
Cpus = Annotated[float | None, typer.Option("--cpus", min=0, help="CPUs that all of it needs.")]
Gpus = Annotated[float | None, typer.Option("--gpus", min=0, help="GPUs that all of it needs.")]
Memory = Annotated[str | None, typer.Option("--memory", help='Memory that all of it needs, such as "8GiB".')]
Resources = Annotated[
    list[str] | None, typer.Option("--resource", help="What else it needs, as NAME=AMOUNT; may be repeated.")
]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="Prefer clusters with this tag; may be repeated.")]
RequiredTags = Annotated[
    list[str] | None, typer.Option("--require-tag", help="Only clusters with this tag; may be repeated.")
]
PreferredCluster = Annotated[
    str | None,
    typer.Option("--preferred-cluster", help="The cluster to prefer.", autocompletion=completion.clusters),
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


def requested_resources(
    cpus: float | None, gpus: float | None, memory: str | None, resource: list[str] | None
) -> dict[str, Any]:
    """The amounts that these options name. Raises BadParameter."""
    amounts: dict[str, Any] = {}
    for text in resource or []:
        name, sign, amount = text.partition("=")
        try:
            if not name or not sign:
                raise ValueError
            amounts[name] = float(amount)
        except ValueError:
            raise typer.BadParameter(f"{text!r} is not NAME=AMOUNT, such as tpu=2.", param_hint="--resource") from None
    given = {"CPU": cpus, "GPU": gpus, "memory": memory}
    return {**amounts, **{name: value for name, value in given.items() if value is not None}}


class LogStyle(StrEnum):
    auto = "auto"
    record = "record"
    pretty = "pretty"


class LogColor(StrEnum):
    auto = "auto"
    false = "false"
    true = "true"


_RAY_OPTIONS: dict[str, tuple[Any, Any]] = {
    "address": (Address, None),
    "verify": (
        Annotated[
            str,
            typer.Option(
                "--verify", help="As in `ray job`: a file with certificates to trust (RMCS_TLS_CA); not `false`."
            ),
        ],
        "true",
    ),
    "headers": (
        Annotated[
            str | None,
            typer.Option("--headers", help="As in `ray job`, as JSON; only Authorization is sent (RMCS_TOKEN)."),
        ],
        None,
    ),
    "log_style": (
        Annotated[
            LogStyle,
            typer.Option("--log-style", hidden=True, help="For scripts of `ray job`; only record counts: no colours."),
        ],
        LogStyle.auto,
    ),
    "log_color": (
        Annotated[
            LogColor,
            typer.Option("--log-color", hidden=True, help="For scripts of `ray job`; only false counts: no colours."),
        ],
        LogColor.auto,
    ),
    "verbose": (Annotated[bool, typer.Option("-v", "--verbose", help="Log to stderr.")], False),
}


class JobService(NamedTuple):
    """The service that the options of a job command name, with the token and the CA file that they set, if any."""

    service: Service
    token: str | None
    tls_ca: str | None


def with_ray_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command, whose first parameter is a JobService, the options of `ray job` and --address instead of that.
    The command raises ConfigurationError for what they cannot mean."""

    @functools.wraps(command)
    def run(**options: Any) -> None:
        given = {name: options.pop(name) for name in _RAY_OPTIONS}
        command(_connect_with(**given), **options)

    signature = inspect.signature(command, eval_str=True)
    own = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in list(signature.parameters.values())[1:]]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in _RAY_OPTIONS.items()
    ]
    run.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]  # Typer reads this
    run.__annotations__ = {one.name: one.annotation for one in (*own, *added)}
    return run


def _connect_with(
    address: str | None, verify: str, headers: str | None, log_style: LogStyle, log_color: LogColor, verbose: bool
) -> JobService:
    if log_style is LogStyle.record or log_color is LogColor.false:
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


def runtime_env_of(file: Path | None, text: str | None, working_dir: str | None) -> dict[str, Any] | None:
    """From a YAML file, or from JSON; ``working_dir`` overrides theirs, as in `ray job submit`."""
    if file is not None and text is not None:
        raise typer.BadParameter("give only one of --runtime-env and --runtime-env-json.")
    found = _from_yaml(file) if file is not None else json_object(text, "--runtime-env-json")
    merged = found if working_dir is None else {**(found or {}), "working_dir": working_dir}
    _check_folder((merged or {}).get("working_dir"), "--working-dir" if working_dir is not None else "working_dir")
    return merged


def _check_folder(folder: object, option: str) -> None:
    """Raises BadParameter if a local folder, which would be uploaded, does not exist."""
    if not isinstance(folder, str) or "://" in folder:
        return
    try:
        exists = Path(folder).expanduser().exists()
    except (OSError, RuntimeError, ValueError) as error:  # not permitted, no such user, not a file name
        why = getattr(error, "strerror", None) or str(error)
        raise typer.BadParameter(f"{folder[:200]!r} cannot be read: {why}.", param_hint=option) from None
    if not exists:
        raise typer.BadParameter(f"there is no folder or archive {folder[:200]!r} here.", param_hint=option)


def _from_yaml(file: Path) -> dict[str, Any]:
    from ray_multicluster_scheduler.control_plane.config.yaml_text import parse_yaml

    try:
        value = parse_yaml(file.read_text(encoding="utf-8"), str(file))
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"{file} cannot be read: {why}.", next_step="name a YAML file") from None
    if not isinstance(value, dict):
        raise ConfigurationError(
            f"{file} has no runtime_env in it.", next_step="write keys and values, such as pip: […]"
        )
    return value
