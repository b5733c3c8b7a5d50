"""Options that `ray job` has, for scripts in which only the program's name changes."""

from __future__ import annotations

import json
import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ray_multicluster_scheduler.cli.service.client import Service


class LogStyle(StrEnum):
    auto = "auto"
    record = "record"
    pretty = "pretty"


class LogColor(StrEnum):
    auto = "auto"
    false = "false"
    true = "true"


Verify = Annotated[
    str, typer.Option("--verify", help="As in `ray job`: a file with certificates to trust (RMCS_TLS_CA); not `false`.")
]
Headers = Annotated[
    str | None,
    typer.Option("--headers", help="As in `ray job`, as JSON; only Authorization is sent (RMCS_TOKEN)."),
]
Style = Annotated[
    LogStyle, typer.Option("--log-style", hidden=True, help="For scripts of `ray job`; only record counts: no colours.")
]
Color = Annotated[
    LogColor, typer.Option("--log-color", hidden=True, help="For scripts of `ray job`; only false counts: no colours.")
]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Log to stderr.")]


def connect_as_ray(
    address: str | None, verify: str, headers: str | None, style: LogStyle, color: LogColor, *, verbose: bool
) -> Service:
    """The service, with the token and the trust that these options mean. Raises ConfigurationError."""
    from ray_multicluster_scheduler.cli.service.client import connect

    if style is LogStyle.record or color is LogColor.false:
        os.environ["NO_COLOR"] = "1"
    if verbose:
        from ray_multicluster_scheduler.common.logging import configure

        configure("INFO")
    return connect(address, token=token_of(headers), tls_ca=trusted(verify))


def trusted(verify: str) -> str | None:
    """A file; None: whom the system trusts."""
    if verify.lower() in ("true", "1", "yes"):
        return None
    if verify.lower() in ("false", "0", "no"):
        raise typer.BadParameter(
            "a service is not used without knowing who it is; name a file with its certificate.", param_hint="--verify"
        )
    return verify


def token_of(headers: str | None) -> str | None:
    """Of ``{"Authorization": "Bearer …"}``."""
    said = json_object(headers, "--headers")
    if said is None:
        return None
    kind, _, token = str({name.lower(): one for name, one in said.items()}.pop("authorization", "")).partition(" ")
    if len(said) != 1 or kind.lower() != "bearer" or not token:
        raise typer.BadParameter(
            'the only header that is sent is {"Authorization": "Bearer …"}.', param_hint="--headers"
        )
    return token


def json_object(text: str | None, option: str) -> dict[str, Any] | None:
    """What such an option says. Raises BadParameter."""
    if text is None:
        return None
    try:
        said = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"this is no JSON: {error}.", param_hint=option) from None
    if not isinstance(said, dict):
        raise typer.BadParameter('give a JSON object, such as {"key": "value"}.', param_hint=option)
    return said


def runtime_env_of(file: Path | None, text: str | None, working_dir: str | None) -> dict[str, Any] | None:
    """As `ray job submit` does: of a YAML file, or of JSON; a working_dir that is given beside it wins."""
    if file is not None and text is not None:
        raise typer.BadParameter("give only one of --runtime-env and --runtime-env-json.")
    found = _from_yaml(file) if file is not None else json_object(text, "--runtime-env-json")
    merged = found if working_dir is None else {**(found or {}), "working_dir": working_dir}
    _check_folder((merged or {}).get("working_dir"), "--working-dir" if working_dir is not None else "working_dir")
    return merged


def _check_folder(folder: object, said_by: str) -> None:
    """One of this machine has to be there: it is sent along. Raises BadParameter."""
    if not isinstance(folder, str) or "://" in folder:
        return
    try:
        there = Path(folder).expanduser().exists()
    except (OSError, RuntimeError, ValueError) as error:  # nobody may look, no such user, no name of a file
        why = getattr(error, "strerror", None) or str(error)
        raise typer.BadParameter(f"{folder[:200]!r} cannot be read: {why}.", param_hint=said_by) from None
    if not there:
        raise typer.BadParameter(f"there is no folder or archive {folder[:200]!r} here.", param_hint=said_by)


def _from_yaml(file: Path) -> dict[str, Any]:
    from ray_multicluster_scheduler.common.exception import ConfigurationError
    from ray_multicluster_scheduler.control_plane.config.yaml_text import parse_yaml

    try:
        said = parse_yaml(file.read_text(encoding="utf-8"), str(file))
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"{file} cannot be read: {why}.", next_step="name a YAML file") from None
    if not isinstance(said, dict):
        raise ConfigurationError(
            f"{file} has no runtime_env in it.", next_step="write keys and values, such as pip: […]"
        )
    return said
