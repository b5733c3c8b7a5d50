"""`rmcs plan`: where an item would go now, and why; submits nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ray_multicluster_scheduler.cli import exit_codes
from ray_multicluster_scheduler.cli.arguments.item_options import (
    Cpus,
    Gpus,
    Memory,
    PreferredCluster,
    RequiredTags,
    Resources,
    Tags,
    field_option,
    requested_resources,
)
from ray_multicluster_scheduler.cli.arguments.options import Config
from ray_multicluster_scheduler.cli.layout.lines import FoldedText, text_table
from ray_multicluster_scheduler.cli.layout.output import Format, Output, emit
from ray_multicluster_scheduler.cli.service.client import Address, api_path, connect, find_address
from ray_multicluster_scheduler.common.model.task_description import Fallback

if TYPE_CHECKING:
    from ray_multicluster_scheduler.common.model import SchedulingDecision


def plan(
    kind: Annotated[Literal["task", "actor", "job"], typer.Option("--kind", help="The kind of item.")] = "task",
    cpus: Cpus = None,
    gpus: Gpus = None,
    memory: Memory = None,
    resource: Resources = None,
    tag: Tags = None,
    require_tag: RequiredTags = None,
    preferred_cluster: PreferredCluster = None,
    fallback: Annotated[Fallback, field_option("fallback", "--fallback")] = "any",
    config: Config = None,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Show where an item would go now, without submitting it.

    Refreshes the clusters. Exit code 100 if it would fail at once: no cluster can ever take it, or the queue is full.
    """
    from ray_multicluster_scheduler import UnifiedScheduler
    from ray_multicluster_scheduler.common.tables import decision_rows, fails_at_once

    amounts = requested_resources(cpus, gpus, memory, resource)
    if config is None and find_address(address) is not None:
        connect(address).get(api_path("fleet"))  # the client library would wait for a service that does not answer
    with UnifiedScheduler(config=config, address=address) as scheduler:
        decision = scheduler.plan(
            amounts or None,
            kind=kind,
            tags=tag or None,
            require_tags=require_tag or None,
            preferred_cluster=preferred_cluster,
            fallback=fallback,
        )
    emit(decision.to_dict(), output, lambda: plan_text(decision))
    if decision.code == "QUEUE_FULL" or fails_at_once(decision_rows(decision)):
        raise typer.Exit(exit_codes.FAILED)


def plan_text(decision: SchedulingDecision | Mapping[str, Any]) -> FoldedText:
    """The decision with the verdict on each cluster."""
    from ray_multicluster_scheduler.common.tables import decision_text

    return FoldedText(lambda width: decision_text(decision, text_table(width)))
