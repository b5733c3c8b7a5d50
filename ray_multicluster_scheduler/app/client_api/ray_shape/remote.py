"""The ``@remote`` decorator. Light to import: users' modules that have it are loaded inside clusters, too."""

from __future__ import annotations

from typing import Any

from ray_multicluster_scheduler.app.client_api.ray_shape.remote_class import RemoteClass, as_remote_class
from ray_multicluster_scheduler.app.client_api.ray_shape.remote_function import RemoteFunction, as_remote_function
from ray_multicluster_scheduler.common.exception import ConfigurationError


def remote(*target: Any, **options: Any) -> Any:
    """Make a function or class run on clusters: ``@remote``, ``@remote(num_cpus=2, tags=["arm64"])``.

    Options are Ray's (``num_cpus``, ``num_gpus``, ``memory``, ``resources``, ``num_returns``, ``max_retries``,
    ``retry_exceptions``, ``name``, ``runtime_env``, …) and those of ``submit_task`` and ``submit_actor``. What is
    ``@ray.remote`` already is taken as it is. Raises ConfigurationError for what cannot be decorated, or an
    option that does not exist.
    """
    if len(target) > 1 or (target and options):
        raise ConfigurationError(
            "remote takes a function or class alone, or options alone, as keywords.",
            next_step="write @remote, @remote(num_cpus=2), or remote(num_cpus=2)(f)",
        )
    if target:
        return _made(target[0], {})

    def decorate(function_or_class: Any) -> Any:
        return _made(function_or_class, options)

    return decorate


def _made(target: Any, options: dict[str, Any]) -> Any:
    target = as_remote_function(target)
    if not isinstance(target, RemoteFunction):
        target = as_remote_class(target)
    if isinstance(target, (RemoteFunction, RemoteClass)):
        return target.options(**options) if options else target
    return RemoteClass(target, **options) if isinstance(target, type) else RemoteFunction(target, **options)
