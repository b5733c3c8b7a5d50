"""Which detached actors of ours live in a cluster, as its dashboard tells it. Pure."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from ray_multicluster_scheduler.common.model.actor_description import ACTOR_NAMESPACE

_OVER = "DEAD"


def actors_route(name: str) -> str:
    """Asks for the actors of this name in our namespace, those that are over included."""
    filters = [("name", name), ("ray_namespace", ACTOR_NAMESPACE)]
    query = [("detail", "1"), ("limit", "1000")]
    for key, value in filters:
        query += [("filter_keys", key), ("filter_predicates", "="), ("filter_values", value)]
    return f"/api/v0/actors?{urlencode(query)}"


def has_living_actor(answer: Any, name: str) -> bool:
    """Is one of them detached and not over? Raises KeyError, TypeError for an answer of another shape than Ray's."""
    rows = answer["data"]["result"]["result"]
    return any(row["name"] == name and row["state"] != _OVER and row.get("is_detached", True) for row in rows)
