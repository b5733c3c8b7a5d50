"""FleetConfig: settings, clusters and pools, validated and frozen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError, model_validator
from pydantic_core import PydanticCustomError

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.control_plane.config.cluster_config import ClusterConfig
from ray_multicluster_scheduler.control_plane.config.environment_spec import absolute_paths
from ray_multicluster_scheduler.control_plane.config.home import expanded
from ray_multicluster_scheduler.control_plane.config.pool_config import PoolConfig, pool_problem
from ray_multicluster_scheduler.control_plane.config.settings import Settings, Strict
from ray_multicluster_scheduler.control_plane.config.validation_errors import (
    AT_A_PLACE,
    ConfigProblem,
    config_error,
    did_you_mean,
    validation_error,
)
from ray_multicluster_scheduler.control_plane.config.yaml_text import NO_LINES, LineIndex


class FleetConfig(Strict):
    """Settings, clusters and pools. ``source`` names their origin in messages; relative paths start at ``base_dir``."""

    settings: Settings = Settings()
    clusters: tuple[ClusterConfig, ...]
    pools: tuple[PoolConfig, ...] = ()
    source: str = "an argument"
    base_dir: Path = Path()

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        if not self.clusters:
            raise ValueError("clusters: the list is empty; at least one cluster is needed")
        for number, sentence in _repeated_names(self.names):
            place = ("clusters", number, "name")
            raise PydanticCustomError(AT_A_PLACE, "{words}", {"words": sentence, "place": place})
        problem = pool_problem(self.pools, self.names)
        if problem is not None:
            raise PydanticCustomError(AT_A_PLACE, "{words}", {"words": problem[1], "place": problem[0]})
        return self

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(cluster.name for cluster in self.clusters)

    def cluster(self, name: str) -> ClusterConfig:
        """The cluster of that name. Raises ConfigurationError."""
        for cluster in self.clusters:
            if cluster.name == name:
                return cluster
        raise ConfigurationError(
            f"There is no cluster {name!r} in {self.source}{did_you_mean(name, self.names)}.",
            cluster=name,
            next_step=f"use one of: {', '.join(self.names)}",
        )


def build_fleet(
    settings: Mapping[str, Any],
    clusters: Sequence[ClusterConfig | Mapping[str, Any]],
    *,
    source: str,
    base_dir: Path,
    variables: Mapping[str, str] | None = None,
    lines: LineIndex = NO_LINES,
    pools: Sequence[Any] = (),
) -> FleetConfig:
    """Validate plain data. ``variables`` names the environment variable of each setting that has one; ``lines`` belongs
    to the text of the data.

    Raises ConfigurationError that names the source, each wrong key with its line, and what was expected there.
    """
    rows = [row if isinstance(row, ClusterConfig) else dict(row) for row in clusters]
    try:
        fleet = FleetConfig.model_validate(
            {"settings": dict(settings), "clusters": rows, "pools": pools, "source": source, "base_dir": base_dir}
        )
    except ValidationError as error:
        # The validator for repeated names runs only when nothing else is wrong.
        names = [row.name if isinstance(row, ClusterConfig) else row.get("name") for row in rows]
        repeated = [
            ConfigProblem(sentence, lines.line_of(("clusters", number, "name")))
            for number, sentence in _repeated_names(names)
        ]
        raise validation_error(
            source,
            error,
            rows={"clusters": rows, "pools": pools},
            variables=variables or {},
            lines=lines,
            repeated=repeated,
        ) from None
    if lines.duplicates:
        raise config_error(source, (), lines=lines)
    return fleet.model_copy(update={"clusters": tuple(_anchored(row, base_dir) for row in fleet.clusters)})


def _repeated_names(names: Sequence[object]) -> Iterator[tuple[int, str]]:
    """Number and sentence of each cluster whose name an earlier one has."""
    for number, name in enumerate(names):
        if isinstance(name, str) and name in names[:number]:
            yield number, f"clusters: the name {name!r} is given twice; each cluster needs its own"


def _anchored(cluster: ClusterConfig, base: Path) -> ClusterConfig:
    """Make relative paths of this machine absolute, so that a later change of directory does not matter."""
    update: dict[str, Any] = {"runtime_env": absolute_paths(cluster.runtime_env, base)}
    if cluster.auth_token_path is not None:
        update["auth_token_path"] = str(base / expanded(cluster.auth_token_path, "auth_token_path"))
    if cluster.tls.ca is not None:
        update["tls"] = cluster.tls.model_copy(update={"ca": str(base / expanded(cluster.tls.ca, "tls.ca"))})
    return cluster.model_copy(update=update)
