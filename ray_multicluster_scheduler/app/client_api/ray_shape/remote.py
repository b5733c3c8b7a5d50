"""The ``@remote`` decorator. Light to import: users' modules that use it are also loaded inside clusters."""

from __future__ import annotations

import functools
from typing import Any

from ray_multicluster_scheduler.app.client_api.ray_shape.remote_class import RemoteClass, as_remote_class
from ray_multicluster_scheduler.app.client_api.ray_shape.remote_function import RemoteFunction, as_remote_function
from ray_multicluster_scheduler.common.exception import ConfigurationError


def remote(*target: Any, **options: Any) -> Any:
    """Make a function or class run on clusters: ``@remote``, ``@remote(num_cpus=2, tags=["arm64"])``.

    Options are Ray's (``num_cpus``, ``num_gpus``, ``memory``, ``resources``, ``num_returns``, ``max_retries``,
    ``retry_exceptions``, ``name``, ``runtime_env``, …) and those of ``submit_task`` and ``submit_actor``. Functions and
    classes with ``@ray.remote`` are accepted. Raises ConfigurationError for other targets and unknown options.
    """
    if len(target) > 1 or (target and options):
        raise ConfigurationError(
            "remote takes a function or class alone, or options alone, as keywords.",
            next_step="write @remote, @remote(num_cpus=2), or remote(num_cpus=2)(f)",
        )
    if target:
        return _made(target[0], {})
    return functools.partial(_made, options=options)


def _made(target: Any, options: dict[str, Any]) -> Any:
    target = as_remote_function(target)
    if not isinstance(target, RemoteFunction):
        target = as_remote_class(target)
    if isinstance(target, (RemoteFunction, RemoteClass)):
        return target.options(**options) if options else target
    return RemoteClass(target, **options) if isinstance(target, type) else RemoteFunction(target, **options)
