"""`rmcs serving deploy`: serve a class of a Python file by replicas over the fleet of a service."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from ray_multicluster_scheduler.cli.commands.submit import (
    Cpus,
    Gpus,
    Memory,
    PreferredCluster,
    RequiredTags,
    Resources,
    Tags,
    requested_resources,
)
from ray_multicluster_scheduler.cli.layout.output import Format, Output, emit, notify
from ray_multicluster_scheduler.cli.service.client import Address, connect
from ray_multicluster_scheduler.common.exception import ConfigurationError


def deploy(
    target: Annotated[str, typer.Argument(metavar="FILE:CLASS", help="A class with infer or __call__.")],
    name: Annotated[str, typer.Option("--name", help="Its name, which is that of its model.")],
    replicas: Annotated[int, typer.Option("--replicas", min=0, help="So many actors of the class.")] = 1,
    cpus: Cpus = None,
    gpus: Gpus = None,
    memory: Memory = None,
    resource: Resources = None,
    tag: Tags = None,
    tags: Annotated[str | None, typer.Option("--tags", help="The same as --tag for each, separated by commas.")] = None,
    require_tag: RequiredTags = None,
    preferred_cluster: PreferredCluster = None,
    max_batch: Annotated[
        int, typer.Option("--max-batch", min=1, help="The class takes lists of at most so many inputs.")
    ] = 1,
    batch_wait_ms: Annotated[
        float, typer.Option("--batch-wait-ms", min=0, help="How long a request waits for others.")
    ] = 5.0,
    concurrency: Annotated[
        int, typer.Option("--concurrency", min=1, help="Calls that a replica runs at the same time.")
    ] = 1,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Serve a class of a Python file by replicas over the fleet.

    Resources are those of each replica. The deployment lives in the service: `rmcs serving status` shows it.
    """
    from ray_multicluster_scheduler import UnifiedScheduler

    service = connect(address)
    cls = load_class(target)
    with UnifiedScheduler(address=service.address, token=service.token or None) as scheduler:
        made = scheduler.deploy(
            cls,
            name=name,
            replicas=replicas,
            resource_requirements=requested_resources(cpus, gpus, memory, resource) or None,
            tags=[*(tag or ()), *(tags.split(",") if tags else ())] or None,
            max_batch=max_batch,
            batch_wait_ms=batch_wait_ms,
            concurrency=concurrency,
            require_tags=require_tag or None,
            preferred_cluster=preferred_cluster,
        )
        notify(f"{name} is deployed; its replicas: `rmcs serving status {name}`")
        emit(made.status(), output, lambda: name)


def load_class(target: str) -> Any:
    """The class that FILE:CLASS names. Raises BadParameter, and ConfigurationError if the file cannot be loaded."""
    file, _, name = target.rpartition(":")
    path = Path(file).expanduser().resolve()
    if path.suffix != ".py" or not path.is_file():
        raise typer.BadParameter(f"{target!r} names no Python file; write app.py:Model.", param_hint="FILE:CLASS")
    sys.path.insert(0, str(path.parent))
    try:
        module = import_module(path.stem)
        found = getattr(module, name)
    except Exception as error:
        raise ConfigurationError(
            f"{target} cannot be loaded: {type(error).__name__}: {error}.", next_step="correct the file"
        ) from error
    if Path(module.__file__ or "").resolve() != path:
        raise ConfigurationError(f"{path.stem} is the name of another module.", next_step=f"rename {path.name}")
    return found
