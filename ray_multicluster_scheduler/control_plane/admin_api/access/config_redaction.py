"""Configuration for display: values that are or may be secrets are masked or left out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ray_multicluster_scheduler.common.redaction import MASKED, mask_config
from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import Caller
from ray_multicluster_scheduler.control_plane.config import ClusterConfig, FleetConfig, Settings
from ray_multicluster_scheduler.control_plane.runtime.pools import definition_of, pool_of

_NO_SECRETS = ("auth", "service_tls")
"""Settings whose names look like secrets but whose values are a mode and file paths."""


def settings_shown(settings: Settings, only_owner: str | None) -> dict[str, Any]:
    """All settings that are in force; of owners only this one, if one is given."""
    values = for_owner(settings.model_dump(mode="json"), only_owner)
    return {**mask_config(values), **{name: values[name] for name in _NO_SECRETS}}


def for_owner(settings: dict[str, Any], only_owner: str | None) -> dict[str, Any]:
    """The settings without the limits of other owners; None: with all."""
    if only_owner is None:
        return settings
    return {**settings, "owners": {name: one for name, one in settings["owners"].items() if name == only_owner}}


def cluster_shown(config: ClusterConfig) -> dict[str, Any]:
    """An entry of ``clusters:``, with only the source of its token, and only the names of environment variables."""
    entry = config.model_dump(mode="json", exclude={"auth_token", "auth_token_path"})
    environment = dict(entry["runtime_env"])
    if isinstance(environment.get("env_vars"), Mapping):
        environment["env_vars"] = dict.fromkeys(environment["env_vars"], MASKED)
    how = "token" if config.auth_token is not None else "file" if config.auth_token_path is not None else None
    return {**mask_config({**entry, "runtime_env": environment}), "auth": how}


def pools_shown(rows: Collection[dict[str, Any]], caller: Caller) -> list[dict[str, Any]]:
    """The pools that the caller may use, without other owners; or all of them, if it sees everything."""
    shown = [{**row, "owners": [one for one in row["owners"] if caller.may_see(one)]} for row in rows]
    return [one for one, row in zip(shown, rows, strict=True) if caller.sees_all or one["owners"] or not row["owners"]]


def config_shown(config: FleetConfig) -> dict[str, Any]:
    """The whole configuration, as the service shows its own."""
    return {
        "settings": settings_shown(config.settings, None),
        "source": config.source,
        "clusters": [cluster_shown(one) for one in config.clusters],
        "pools": [definition_of(pool_of(one)) for one in config.pools],
    }
