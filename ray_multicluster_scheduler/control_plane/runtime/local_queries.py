"""What a control plane answers on its socket."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.control_plane.runtime import explanation, fleet_control, open_calls
from ray_multicluster_scheduler.control_plane.runtime.submission_checks import checked_reason
from ray_multicluster_scheduler.scheduler.lifecycle.record import TaskRecord

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.runtime.runtime import Runtime

MOST_LISTED = 1000
_SHOWN_OF_COMMAND = 200


async def answer(runtime: Runtime, question: Mapping[str, Any]) -> dict[str, Any]:
    """On the loop. Raises UnknownItemError, ConfigurationError."""
    match question:
        case {"explain": str(item_id)}:
            if runtime.method_calls.was_issued(item_id) or runtime.method_calls.find(item_id) is not None:
                story = await asyncio.to_thread(open_calls.explain_by_id, runtime, item_id)
            else:
                story = explanation.story(runtime, item_id)
            return {"program": _program(runtime), "explain": story}
        case {"list": True}:
            records = list(runtime.machine.records())
            rows = [_row(record) for record in reversed(records[-MOST_LISTED:])]
            return {"program": _program(runtime), "items": rows, "more": len(records) - len(rows)}
        case {"declare_dead": str(cluster)}:
            reason, force = checked_reason(question.get("reason", "")), question.get("force") is True
            items = await fleet_control.declare_dead(runtime, cluster, reason, force=force)
            return {"program": _program(runtime), "cluster": cluster, "items": items}
        case {"drain": str(cluster)}:
            return _cordoned(runtime, cluster, cordoned=True)
        case {"uncordon": str(cluster)}:
            return _cordoned(runtime, cluster, cordoned=False)
    raise ConfigurationError(
        f"{dict(question)!r} is no question that is known here.",
        next_step='ask {"explain": "<id>"} or {"list": true}, or tell {"drain": "<cluster>"}',
    )


def _cordoned(runtime: Runtime, cluster: str, *, cordoned: bool) -> dict[str, Any]:
    changed = fleet_control.is_cordoned(runtime, cluster) != cordoned
    items = fleet_control.cordon(runtime, cluster, cordoned=cordoned)
    return {"program": _program(runtime), "cluster": cluster, "items": items, "changed": changed}


def _program(runtime: Runtime) -> dict[str, Any]:
    command = " ".join(sys.orig_argv)[:_SHOWN_OF_COMMAND]
    return {"pid": os.getpid(), "command": command, "control_plane": runtime.control_plane}


def _row(record: TaskRecord) -> dict[str, Any]:
    return {
        "id": record.task.id,
        "kind": record.task.kind,
        "name": record.task.name,
        "actor_name": None if record.task.actor is None else record.task.actor.public_name,
        "owner": record.task.owner,
        "state": str(record.state),
        "cluster": record.cluster,
        "code": record.code,
    }
