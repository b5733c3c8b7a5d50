"""ClusterMetadata: what placement knows of a cluster from its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self

from ray_multicluster_scheduler.common.model.resources import Resources

Carrier = Literal["auto", "agent", "dial_in", "ray_client"]


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """The configuration of one cluster without secrets, so that it may be stored and shown."""

    name: str
    head_address: str | None = None
    dashboard: str | None = None
    prefer: bool = False
    weight: float = 1.0
    tags: tuple[str, ...] = ()
    home_dir: str | None = None
    python: str = "python"
    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    max_running_jobs: int = 20
    max_in_flight: int = 1000
    carrier: Carrier = "auto"
    autoscaling: bool = False
    max_node: Resources | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        return cls(**{**data, "tags": tuple(data.get("tags", ()))})
