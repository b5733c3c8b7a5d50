"""For programs that used ``ray.util``: what of it there is here."""

from __future__ import annotations

from ray_multicluster_scheduler.app.client_api.executor.actor_pool import ActorPool

__all__ = ["ActorPool"]
