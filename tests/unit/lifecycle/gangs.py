"""Builder of gangs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray_multicluster_scheduler.common.model import GangDescription, MemberDescription, TaskDescription


def members(*needs: float | Mapping[str, float]) -> tuple[MemberDescription, ...]:
    """One for each: a number is CPUs."""
    amounts = [{"CPU": float(one)} if isinstance(one, (int, float)) else one for one in needs]
    return tuple(MemberDescription(f"f{at}", need, "function", "arguments") for at, need in enumerate(amounts))


def gang(gang_id: str, *needs: float | Mapping[str, float], **values: Any) -> TaskDescription:
    """``values`` are the gang's (strategy, of, ready_timeout), or the item's."""
    own = {key: values.pop(key) for key in ("strategy", "of", "ready_timeout") if key in values}
    described = GangDescription(members(*needs), **own)
    return TaskDescription(
        **{
            "id": gang_id,
            "kind": "gang",
            "name": gang_id,
            "requirements": described.total,
            "gang": described,
            **values,
        }
    )
