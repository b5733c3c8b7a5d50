"""Where this code runs: Ray, the item it belongs to, and how our own package got here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray_multicluster_scheduler
from ray_multicluster_scheduler.common.current_item import CurrentItem, cluster_here, get_current
from ray_multicluster_scheduler.common.exception import ClusterConnectionError, SchedulerError

_PACKAGE = "_ray_pkg_"


def item() -> CurrentItem:
    """The item whose child anything submitted here is. Raises SchedulerError outside of a cluster."""
    current = get_current()
    if current is not None:
        return current
    cluster = cluster_here()
    if cluster is None:
        raise SchedulerError(
            "This was made inside a cluster and is used outside of any.",
            next_step="use it in the job or task that made it; a program uses the verbs of the package",
        )
    return CurrentItem("a task of Ray's own", 0, 0, cluster)


def connected_ray() -> Any:
    """Ray, connected to the cluster that we are in: a job's script has not called ray.init yet, a worker needs not."""
    import ray  # noqa: PLC0415 - there is none outside of a cluster, where this module can be loaded, too

    if not ray.is_initialized():
        try:
            ray.init(address="auto")
        except Exception as error:
            raise ClusterConnectionError(
                f"Ray cannot be reached from inside of cluster {item().cluster!r}: {type(error).__name__}: {error}.",
                cluster=item().cluster,
                next_step="see in the cluster's dashboard whether its head and this node are alive",
            ) from error
    return ray


def on_rays_way() -> bool:
    """Is Ray pickling this, for somebody on the same cluster? Else it is for outside, where it means nothing."""
    from ray._private.worker import global_worker  # noqa: PLC0415 - inside a cluster only

    return bool(global_worker.get_serialization_context().is_in_band_serialization())


def own_package() -> str:
    """What to name in ``py_modules`` so that others on this cluster have our package: its URI, or else its folder."""
    folder = Path(ray_multicluster_scheduler.__file__).parent
    parent = folder.parent.name
    return f"gcs://{parent}.zip" if parent.startswith(_PACKAGE) else str(folder)


def merged_environments(common: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """What is said for all, overlaid by what one says itself; variables one by one."""
    merged = {**common, **own}
    variables = {**(common.get("env_vars") or {}), **(own.get("env_vars") or {})}
    return {**merged, "env_vars": variables} if variables else merged


def with_inherited_modules(runtime_env: Mapping[str, Any], inherited: Mapping[str, Any]) -> dict[str, Any]:
    """Ray would replace the ``py_modules`` of the job, ours among them, by a caller's: both stay."""
    modules = [*(inherited.get("py_modules") or ()), *(runtime_env.get("py_modules") or ())]
    env = dict(runtime_env)
    if modules:
        env["py_modules"] = list(dict.fromkeys(str(module) for module in modules))
    return env
