"""The context of code inside a cluster: its item, its connection to Ray, and our own package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray_multicluster_scheduler
from ray_multicluster_scheduler.common.current_item import CurrentItem, cluster_here, get_current
from ray_multicluster_scheduler.common.exception import ClusterConnectionError, SchedulerError

_PACKAGE = "_ray_pkg_"


def item() -> CurrentItem:
    """Return the item that this code belongs to. Raises SchedulerError outside a cluster."""
    current = get_current()
    if current is not None:
        return current
    cluster = cluster_here()
    if cluster is None:
        raise SchedulerError(
            "An object from inside a cluster was used outside.",
            next_step="use it in the job or task that created it; programs use the verbs of the package",
        )
    return CurrentItem("a task of Ray's own", 0, 0, cluster)


def connected_ray() -> Any:
    """Return the module ray, connected to this cluster: a job's script needs ray.init, a worker does not."""
    import ray  # noqa: PLC0415 - this module can be imported where there is no Ray

    if not ray.is_initialized():
        try:
            ray.init(address="auto")
        except Exception as error:
            raise ClusterConnectionError(
                f"Ray cannot be reached from inside cluster {item().cluster!r}: {type(error).__name__}: {error}.",
                cluster=item().cluster,
                next_step="check in the cluster's dashboard that its head and this node are alive",
            ) from error
    return ray


def is_ray_pickling() -> bool:
    """Is Ray pickling, for a process of the same cluster? Otherwise the pickle may leave the cluster."""
    from ray._private.worker import global_worker  # noqa: PLC0415 - inside a cluster only

    return bool(global_worker.get_serialization_context().is_in_band_serialization())


def own_package() -> str:
    """Return our package for ``py_modules``: its URI in this cluster, else its folder."""
    folder = Path(ray_multicluster_scheduler.__file__).parent
    parent = folder.parent.name
    return f"gcs://{parent}.zip" if parent.startswith(_PACKAGE) else str(folder)


def merged_environments(common: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two environments; ``own`` takes precedence, for each variable separately."""
    merged = {**common, **own}
    variables = {**(common.get("env_vars") or {}), **(own.get("env_vars") or {})}
    return {**merged, "env_vars": variables} if variables else merged


def with_inherited_modules(runtime_env: Mapping[str, Any], inherited: Mapping[str, Any]) -> dict[str, Any]:
    """Add the job's ``py_modules``, which include ours: in Ray the caller's would replace them."""
    modules = [*(inherited.get("py_modules") or ()), *(runtime_env.get("py_modules") or ())]
    env = dict(runtime_env)
    if modules:
        env["py_modules"] = list(dict.fromkeys(str(module) for module in modules))
    return env
