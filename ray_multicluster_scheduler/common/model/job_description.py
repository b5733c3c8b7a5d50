"""What is special about a Ray job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from ray_multicluster_scheduler.common.model.resources import Resources


@dataclass(frozen=True, slots=True)
class JobDescription:
    """The part of an item that only a Ray job has.

    ``entrypoint_resources`` is what Ray holds for the entrypoint process itself, on one node; the job's footprint is
    the item's ``requirements``, and never less than that.
    """

    entrypoint: str
    metadata: Mapping[str, str] = field(default_factory=dict)
    entrypoint_resources: Resources = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        return cls(**data)
