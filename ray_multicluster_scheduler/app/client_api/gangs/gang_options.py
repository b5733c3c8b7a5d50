"""What can be said about a gang as a whole. Light to import, as the options of the other verbs are."""

from __future__ import annotations

from typing import Literal

from ray_multicluster_scheduler.app.client_api.options import ItemOptions

Strategy = Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]


class GangOptions(ItemOptions, total=False):
    """The options of a task, for the gang as one item. ``ready_timeout`` is for a gang of actors: seconds from when a
    cluster took it until all constructors are done."""

    ready_timeout: float | None
