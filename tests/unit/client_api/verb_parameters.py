"""Compare the verbs of a scheduler outside of the clusters with those of one inside."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

from ray_multicluster_scheduler.app.client_api.in_cluster.scheduler import NativeScheduler
from ray_multicluster_scheduler.app.client_api.unified_scheduler import UnifiedScheduler


def check_same_parameters(verbs: Iterable[str]) -> None:
    """Each verb has the same parameters and defaults on both sides."""
    for verb in verbs:
        outside, inside = (
            [(one.name, one.default) for one in inspect.signature(getattr(side, verb)).parameters.values()]
            for side in (UnifiedScheduler, NativeScheduler)
        )
        assert outside == inside, verb
