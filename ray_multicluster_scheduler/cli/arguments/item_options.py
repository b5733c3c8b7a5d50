"""Options that describe an item to submit or to plan, for `rmcs job submit` and `rmcs plan`.

Their help and bounds come from the definitions of the fields (common/model/item_fields.py). Not part of options.py,
which all commands import: those definitions take longer to import than most commands run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ray_multicluster_scheduler.cli.arguments import completion
from ray_multicluster_scheduler.cli.arguments.options import json_object
from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model.item_fields import AMOUNT
from ray_multicluster_scheduler.common.model.submit_options import options_of


def field_option(keyword: str, flag: str, form: str = "", **more: Any) -> Any:
    """The option for a field of an item, named as the keyword of `submit_job`; ``form`` says how it is written."""
    field = options_of("job")[keyword]
    bounds: dict[str, Any] = {"min": field.values.ge, "max": field.values.le} if field.values else {}
    text = f"{field.about.doc.removesuffix('.')}; {form}." if form else field.about.doc
    return typer.Option(flag, help=text, **bounds, **more)


def amount_option(flag: str, text: str) -> Any:
    """The option for the amount of one resource."""
    return typer.Option(flag, min=AMOUNT.ge, help=text)


Cpus = Annotated[float | None, amount_option("--cpus", "CPUs that all of it needs.")]
Gpus = Annotated[float | None, amount_option("--gpus", "GPUs that all of it needs.")]
Memory = Annotated[str | None, typer.Option("--memory", help='Memory that all of it needs, such as "8GiB".')]
Resources = Annotated[
    list[str] | None, typer.Option("--resource", help="What else it needs, as NAME=AMOUNT; may be repeated.")
]
Tags = Annotated[list[str] | None, field_option("tags", "--tag", "may be repeated")]
RequiredTags = Annotated[list[str] | None, field_option("require_tags", "--require-tag", "may be repeated")]
PreferredCluster = Annotated[
    str | None, field_option("preferred_cluster", "--preferred-cluster", autocompletion=completion.clusters)
]


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
