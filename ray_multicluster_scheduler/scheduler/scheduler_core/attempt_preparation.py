"""Prepares an attempt for its cluster: runtime_env, packages, and home directories in paths."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ray_multicluster_scheduler.common.exception import TaskSubmissionError
from ray_multicluster_scheduler.common.home_paths import move_home_paths
from ray_multicluster_scheduler.common.model import TaskDescription
from ray_multicluster_scheduler.control_plane.config import ClusterConfig
from ray_multicluster_scheduler.control_plane.store.secret_encryption import KEY_FILE, is_undecryptable
from ray_multicluster_scheduler.scheduler.cluster.environment import markers, merge_runtime_env
from ray_multicluster_scheduler.scheduler.connection.packages.runtime_env_upload import (
    PackageCache,
    PackageStore,
    resolve_runtime_env,
    ship_own_package,
)

_CONTAINERS = frozenset({"image_uri", "container"})
"""With these keys Ray accepts no py_modules: the image contains all that a job imports."""


@dataclass(frozen=True, slots=True)
class PreparedAttempt:
    """An attempt as the cluster gets it; `explain` shows it. ``converted`` pairs each old path with its new one."""

    cluster: str
    attempt: int
    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    entrypoint: str | None = None
    converted: Sequence[tuple[str, str]] = ()


class AttemptPreparation:
    """Merges runtime environments, uploads packages and converts home paths."""

    def __init__(self, stores: Callable[[str], PackageStore], packages: PackageCache, submitter_home: str) -> None:
        """``stores`` returns the package store of a cluster."""
        self._stores, self._packages = stores, packages
        self._submitter_home = submitter_home
        self._clusters: dict[str, ClusterConfig] = {}
        self._in_progress: dict[str, asyncio.Task[dict[str, Any]]] = {}
        self.prepared: dict[str, PreparedAttempt] = {}
        """The newest attempt of each item as it was sent, until the item is forgotten."""

    def update(self, clusters: Mapping[str, ClusterConfig]) -> None:
        """Use this configuration of clusters from now on."""
        self._clusters = dict(clusters)

    @property
    def homes(self) -> list[str]:
        """Home directories that paths of a submitter may begin with."""
        known = [config.home_dir for config in self._clusters.values() if config.home_dir]
        return list(dict.fromkeys([self._submitter_home, *known]))

    def home_of(self, cluster: str) -> str | None:
        """The home directory in a cluster, or None if it is not configured."""
        return self._clusters[cluster].home_dir

    def needs_upload(self, task: TaskDescription, cluster: str) -> bool:
        """Whether there is an environment to prepare. Most tasks have none and are sent at once."""
        return bool(task.runtime_env or self._clusters[cluster].runtime_env)

    async def task(self, task: TaskDescription, cluster: str, attempt: int) -> PreparedAttempt:
        """Prepare an attempt of a task. Raises ConfigurationError, TaskSubmissionError, DashboardProblem."""
        _check_decryptable(task)
        merged = merge_runtime_env(self._clusters[cluster].runtime_env, task.runtime_env)
        return self.plain_task(task, cluster, attempt, await self._resolved(cluster, merged))

    def plain_task(
        self, task: TaskDescription, cluster: str, attempt: int, runtime_env: Mapping[str, Any] | None = None
    ) -> PreparedAttempt:
        """The same without preparing an environment."""
        converted: Sequence[tuple[str, str]] = ()
        if task.home_paths:
            _, converted = move_home_paths(list(task.home_paths), self.homes, self.home_of(cluster))
        return PreparedAttempt(cluster, attempt, runtime_env or {}, None, converted)

    async def job(self, task: TaskDescription, cluster: str, attempt: int, fence: int) -> PreparedAttempt:
        """Prepare an attempt of a job: its entrypoint and environment. Raises as :meth:`task`."""
        if task.job is None:
            raise TypeError(f"{task.id} is not a job")
        _check_decryptable(task)
        merged = merge_runtime_env(self._clusters[cluster].runtime_env, task.runtime_env)
        merged["env_vars"] = {**merged.get("env_vars", {}), **markers(cluster, task.id, attempt, fence)}
        entrypoint, converted = move_home_paths(task.job.entrypoint, self.homes, self.home_of(cluster), words=True)
        resolved = await self._resolved(cluster, merged)
        if not _CONTAINERS & resolved.keys():
            # A job may call the client API, too. Last, so that a copy of our package among the user's modules wins.
            own = await ship_own_package(self._packages, self._stores(cluster))
            resolved["py_modules"] = [*resolved.get("py_modules", []), own]
        return PreparedAttempt(cluster, attempt, resolved, entrypoint, converted)

    async def _resolved(self, cluster: str, env: Mapping[str, Any]) -> dict[str, Any]:
        """Concurrent attempts with the same environment share one preparation."""
        key = json.dumps([cluster, env], sort_keys=True, default=str)
        under_way = self._in_progress.get(key)
        if under_way is None:
            work = resolve_runtime_env(env, None, self._stores(cluster), self._packages)
            under_way = self._in_progress[key] = asyncio.ensure_future(work)
            under_way.add_done_callback(lambda _: self._in_progress.pop(key, None))
        return dict(await asyncio.shield(under_way))


def _check_decryptable(task: TaskDescription) -> None:
    """Raises TaskSubmissionError for an item whose stored secrets cannot be decrypted any more."""
    if is_undecryptable(task.runtime_env) or (
        task.job is not None and (is_undecryptable(task.job.entrypoint) or is_undecryptable(task.job.metadata))
    ):
        raise TaskSubmissionError(
            f"{task.id} has secrets that were encrypted with a key that is missing ({KEY_FILE} of the service).",
            task_id=task.id,
            next_step="submit it again, or stop the service, put that file back and start it again",
        )
