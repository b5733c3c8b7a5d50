"""The description of a local cluster: plain data, validated on creation."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ray_multicluster_scheduler.common.exception import ConfigurationError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_OWN_KEYS = frozenset(
    {"name", "head_address", "dashboard", "prefer", "weight", "tags", "home_dir", "runtime_env"}
    | {"auth_token", "auth_token_path"}
)
MIN_OBJECT_STORE = 80_000_000
"""Bytes; Ray refuses to start with much less."""


@dataclass(frozen=True)
class LocalCluster:
    """One local cluster: what its node offers, and how clusters.yaml describes it.

    ``home_dir`` defaults to a private, empty home, so that two clusters differ. ``ray_python`` is the interpreter
    whose Ray it runs, by default the fleet's: clusters of one fleet may be of different versions. ``config`` holds
    further keys of its clusters.yaml entry (``max_running_jobs``, ``carrier``, …). One without a dashboard takes no
    jobs.
    """

    name: str
    num_cpus: int = 2
    tags: Sequence[str] = ()
    resources: Mapping[str, float] | None = None
    num_gpus: int = 0
    memory: int | None = None
    home_dir: str | Path | None = None
    runtime_env: Mapping[str, Any] | None = None
    prefer: bool = False
    weight: float = 1.0
    labels: Mapping[str, str] | None = None
    object_store_memory: int = 200_000_000
    with_dashboard: bool = True
    ray_python: str | Path | None = None
    config: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tags", tuple(self.tags))
        if self.home_dir is not None:
            object.__setattr__(self, "home_dir", str(Path(self.home_dir).expanduser().absolute()))
        if self.ray_python is not None:  # not resolved: a venv's python must stay a symlink
            object.__setattr__(self, "ray_python", str(Path(self.ray_python).expanduser().absolute()))
        if not _NAME.fullmatch(self.name):
            raise self._wrong(
                f"its name {self.name!r} is not usable",
                "begin with a letter or a digit, then use letters, digits, '.', '_' and '-'",
            )
        for key in ("num_cpus", "num_gpus"):
            value = getattr(self, key)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise self._wrong(f"{key} is {value!r}", f"give {key} as a whole number, 0 or more")
        if self.object_store_memory < MIN_OBJECT_STORE:
            raise self._wrong(
                f"object_store_memory is {self.object_store_memory}", f"give at least {MIN_OBJECT_STORE} bytes"
            )
        clash = sorted(_OWN_KEYS & set(self.config))
        if clash:
            raise self._wrong(f"config sets {', '.join(clash)}", "use the argument of that name, or leave it out")

    def _wrong(self, what: str, next_step: str) -> ConfigurationError:
        return ConfigurationError(f"LocalCluster {self.name!r}: {what}.", cluster=self.name, next_step=next_step + ".")

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**asdict(self), "tags": list(self.tags)}


def check_distinct(clusters: Sequence[LocalCluster]) -> None:
    """Raises ConfigurationError if there is no cluster, or two have the same name."""
    if not clusters:
        raise ConfigurationError(
            "A local fleet needs at least one cluster.", next_step='pass LocalCluster("name") to LocalFleet.'
        )
    names = [cluster.name for cluster in clusters]
    for name in names:
        if names.count(name) > 1:
            raise ConfigurationError(
                f"Two local clusters are called {name!r}.", cluster=name, next_step="give each its own name."
            )
