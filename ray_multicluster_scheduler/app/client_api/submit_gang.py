"""submit_gang: tasks or actors that start together on one cluster, on the shared scheduler."""

from __future__ import annotations

from ray_multicluster_scheduler.app.client_api.gangs.member import GangMember, member
from ray_multicluster_scheduler.app.client_api.verbs import submit_gang, submit_gang_async

__all__ = ["GangMember", "member", "submit_gang", "submit_gang_async"]
