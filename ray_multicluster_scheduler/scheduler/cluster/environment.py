"""The runtime_env and environment markers of an item for the cluster that was chosen. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.control_plane.config.environment_spec import normalise_runtime_env

_INSTALLERS = ("pip", "uv", "conda")
"""Ray takes only one of them, so the caller's replaces the cluster's."""


def merge_runtime_env(cluster_env: Mapping[str, Any], caller_env: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the caller's runtime_env over the cluster's: dicts merge, lists join, the caller wins.

    Raises ConfigurationError if the caller's is invalid.
    """
    try:
        ours, theirs = normalise_runtime_env(cluster_env), normalise_runtime_env(caller_env)
    except ValueError as error:
        raise ConfigurationError(
            f"runtime_env: {error}", next_step="correct the runtime_env that was given with the item"
        ) from None
    if any(key in theirs for key in _INSTALLERS):
        ours = {key: value for key, value in ours.items() if key not in _INSTALLERS or key in theirs}
    return _merge_dicts(ours, theirs)


def markers(cluster: str, task_id: str, attempt: int, fence: int) -> dict[str, str]:
    """The environment variables that identify a job's attempt."""
    return {
        "RMCS_CLUSTER": cluster,
        "RMCS_TASK_ID": task_id,
        "RMCS_ATTEMPT": str(attempt),
        "RMCS_FENCE": str(fence),
    }


def _merge_dicts(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **lower,
        **{key: _merge(lower[key], value) if key in lower else value for key, value in upper.items()},
    }


def _merge(lower: Any, upper: Any) -> Any:
    if isinstance(lower, Mapping) and isinstance(upper, Mapping):
        return _merge_dicts(lower, upper)
    if isinstance(lower, (list, tuple)) and isinstance(upper, (list, tuple)):
        return [*lower, *(item for item in upper if item not in lower)]
    return upper
