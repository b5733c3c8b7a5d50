"""JobDescription: the fields of an item that only a Ray job has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Self

from ray_multicluster_scheduler.common.model.item_fields import Command, FieldSpec, ResourceAmounts, TextByName

_JOB = ("job",)


@dataclass(frozen=True, slots=True)
class JobDescription:
    """The part of an item that only a Ray job has."""

    entrypoint: Annotated[Command, FieldSpec("The shell command that it runs.")]
    metadata: Annotated[TextByName, FieldSpec("Kept with it by Ray.", _JOB)] = field(default_factory=dict)
    entrypoint_resources: Annotated[
        ResourceAmounts,
        FieldSpec(
            "What Ray holds for the process of the entrypoint itself, on one node; a part of the requirements.", _JOB
        ),
    ] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        return cls(**data)
