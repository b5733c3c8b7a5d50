"""load_config(): finds and reads the configuration; one error reports all its problems."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.control_plane.config.cluster_config import ClusterConfig
from ray_multicluster_scheduler.control_plane.config.fleet_config import FleetConfig, build_fleet
from ray_multicluster_scheduler.control_plane.config.home import expanded, rmcs_home
from ray_multicluster_scheduler.control_plane.config.missing_config import NothingConfiguredError
from ray_multicluster_scheduler.control_plane.config.settings import PRESETS, Settings
from ray_multicluster_scheduler.control_plane.config.validation_errors import (
    NEXT_STEP,
    TOP_KEYS,
    ConfigProblem,
    config_error,
    unknown_key,
)
from ray_multicluster_scheduler.control_plane.config.yaml_text import NO_LINES, LineIndex, parse_with_lines, read_text

__all__ = ["FILE_NAME", "SYSTEM_FILE", "ConfigArgument", "NothingConfiguredError", "config_from", "load_config"]

FILE_NAME = "clusters.yaml"
SYSTEM_FILE = Path("/etc/rmcs") / FILE_NAME


ConfigArgument: TypeAlias = "str | Path | FleetConfig | Sequence[ClusterConfig | Mapping[str, Any]] | None"


def load_config(
    argument: ConfigArgument = None, environ: Mapping[str, str] = os.environ, cwd: Path | None = None
) -> FleetConfig:
    """Argument → ``$RMCS_CONFIG`` → ``$RMCS_CLUSTERS`` → the usual files. Raises ConfigurationError.

    Settings in the environment override those of a file; a FleetConfig is taken as it is, but for the preset of
    preemption.
    """
    here = (cwd or Path.cwd()).absolute()
    if isinstance(argument, FleetConfig):
        return _with_preset(argument, environ)
    if isinstance(argument, (str, Path)):
        return _from_file(here / expanded(argument, "The argument"), environ, origin="")
    if argument is None:
        return _from_environment(environ, here)
    if isinstance(argument, (list, tuple)):
        return _build(_Document({}, list(argument), "the list of clusters given"), environ, here)
    raise ConfigurationError(
        f"The configuration is of type {type(argument).__name__}.",
        next_step="give a path, a FleetConfig, or a list of ClusterConfig",
    )


def _from_environment(environ: Mapping[str, str], here: Path) -> FleetConfig:
    if path := environ.get("RMCS_CONFIG"):
        return _from_file(here / expanded(path, "RMCS_CONFIG"), environ, origin=" (named by RMCS_CONFIG)")
    if text := environ.get("RMCS_CLUSTERS"):
        data, lines = parse_with_lines(text, "RMCS_CLUSTERS")
        return config_from(data, "RMCS_CLUSTERS", here, environ, lines)
    places = [here / FILE_NAME, rmcs_home(environ) / FILE_NAME, SYSTEM_FILE]
    for place in places:
        if place.exists():
            return _from_file(place, environ, origin="")
    raise NothingConfiguredError(
        "No clusters are configured: there is no RMCS_CONFIG, no RMCS_CLUSTERS, and no file "
        f"{', '.join(str(place) for place in places)}.",
        next_step="write a clusters.yaml (`clusters: [{name: mac, dashboard: 'http://192.168.5.2:8265'}]` is one) and "
        "name it in RMCS_CONFIG, or start a local fleet with `rmcs fleet up`",
    )


def _from_file(path: Path, environ: Mapping[str, str], *, origin: str) -> FleetConfig:
    text = read_text(path, "give the path of a readable clusters.yaml", origin)
    source = str(path)
    data, lines = parse_with_lines(text, source)
    return _build(_Document.parse(data, source, lines), environ, path.parent)


def config_from(
    data: object, source: str, here: Path, environ: Mapping[str, str] = os.environ, lines: LineIndex = NO_LINES
) -> FleetConfig:
    """Build from plain data: a list of clusters, or the content of a whole file. Raises ConfigurationError."""
    if isinstance(data, list):
        return _build(_Document({}, data, source, lines.relative_to("clusters")), environ, here)
    return _build(_Document.parse(data, source, lines), environ, here)


@dataclass(frozen=True, slots=True)
class _Document:
    """The parts of a configuration, not yet validated, with their line numbers."""

    settings: Mapping[str, Any]
    clusters: Sequence[Any]
    source: str
    lines: LineIndex = NO_LINES
    pools: Sequence[Any] = ()

    @classmethod
    def parse(cls, data: object, source: str, lines: LineIndex = NO_LINES) -> _Document:
        if not isinstance(data, Mapping):
            what = "is empty" if data is None else f"holds {_kind(data)} at its top level"
            raise ConfigurationError(f"{source} {what}; expected the keys {', '.join(TOP_KEYS)}.", next_step=NEXT_STEP)
        settings: Any = data.get("settings") or {}
        clusters: Any = data.get("clusters")
        pools: Any = data.get("pools") or []
        found = [
            ConfigProblem(f"{key}: {unknown_key(str(key), TOP_KEYS)}", lines.line_of((key,)))
            for key in data
            if key not in TOP_KEYS
        ]
        if not isinstance(settings, Mapping):
            found.append(
                ConfigProblem(f"settings: expected a mapping, got {_kind(settings)}", lines.line_of(("settings",)))
            )
        if not isinstance(clusters, list):
            what = "is missing or empty" if clusters is None else f"holds {_kind(clusters)}"
            sentence = f"clusters {what}; expected a list of clusters, each with a name"
            found.append(ConfigProblem(sentence, lines.line_of(("clusters",))))
        if not isinstance(pools, list):
            found.append(ConfigProblem(f"pools: expected a list, got {_kind(pools)}", lines.line_of(("pools",))))
        if found:
            raise config_error(source, found, lines=lines)
        return cls(settings, clusters, source, lines, pools)


def _build(document: _Document, environ: Mapping[str, str], base_dir: Path) -> FleetConfig:
    no_mappings = [
        ConfigProblem(f"{key}[{number}]: expected a mapping, got {_kind(row)}", document.lines.line_of((key, number)))
        for key, rows in (("clusters", document.clusters), ("pools", document.pools))
        for number, row in enumerate(rows)
        if not isinstance(row, (Mapping, ClusterConfig))
    ]
    if no_mappings:
        raise config_error(document.source, no_mappings, lines=document.lines)
    overrides, variables = _settings_from(environ)
    fleet = build_fleet(
        {**document.settings, **overrides},
        document.clusters,
        source=document.source,
        base_dir=base_dir,
        variables=variables,
        lines=document.lines,
        pools=document.pools,
    )
    return _with_preset(fleet, environ)


def _with_preset(fleet: FleetConfig, environ: Mapping[str, str]) -> FleetConfig:
    """The configuration with the preset of preemption that a variable of the environment names (``env:NAME``). Raises
    ConfigurationError."""
    preemption = fleet.settings.preemption
    name = (preemption.preset or "").partition("env:")[2]
    if not name:
        return fleet
    word = environ.get(name)
    if word not in PRESETS:
        found = "is not set" if word is None else f"is {word[:100]!r}"
        raise ConfigurationError(
            f"{fleet.source}: preemption.preset is {preemption.preset!r}, but the environment variable {name} {found}.",
            next_step=f"set it to {' or '.join(PRESETS)}",
        )
    settings = fleet.settings.model_copy(update={"preemption": preemption.model_copy(update={"preset": word})})
    return fleet.model_copy(update={"settings": settings})


def _settings_from(environ: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Settings given as ``RMCS_<NAME>``, and the variable of each. Other ``RMCS_`` variables are ignored."""
    values: dict[str, Any] = {}
    variables: dict[str, str] = {}
    for name, info in Settings.model_fields.items():
        variable = f"RMCS_{name.upper()}"
        text = environ.get(variable)
        if text:
            values[name] = text if info.annotation is str else _json_or_text(text)
            variables[name] = variable
    return values, variables


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _kind(value: object) -> str:
    names = {"dict": "a mapping", "list": "a list", "str": "text", "int": "a number", "float": "a number"}
    return names.get(type(value).__name__, type(value).__name__)
