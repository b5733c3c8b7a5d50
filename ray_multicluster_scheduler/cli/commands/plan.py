"""`rmcs plan`: where something would go now, and why; nothing is submitted."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ray_multicluster_scheduler.cli import exit_codes
from ray_multicluster_scheduler.cli.arguments import completion
from ray_multicluster_scheduler.cli.arguments.options import Config, Cpus, Gpus, Memory, RequiredTags, Resources, Tags
from ray_multicluster_scheduler.cli.layout.output import Format, Output, emit
from ray_multicluster_scheduler.cli.service.client import Address

if TYPE_CHECKING:
    from ray_multicluster_scheduler.cli.layout.lines import FittingLines
    from ray_multicluster_scheduler.common.model import SchedulingDecision


class Kind(StrEnum):
    task = "task"
    actor = "actor"
    job = "job"


class Fallback(StrEnum):
    any = "any"
    wait = "wait"


def plan(
    kind: Annotated[Kind, typer.Option("--kind", help="What it would be.")] = Kind.task,
    cpus: Cpus = None,
    gpus: Gpus = None,
    memory: Memory = None,
    resource: Resources = None,
    tag: Tags = None,
    require_tag: RequiredTags = None,
    preferred_cluster: Annotated[
        str | None,
        typer.Option("--preferred-cluster", help="Where it should go.", autocompletion=completion.clusters),
    ] = None,
    fallback: Annotated[
        Fallback, typer.Option("--fallback", help="If that one cannot take it now: any other one, or wait for it.")
    ] = Fallback.any,
    config: Config = None,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Ask where an item would go now, without submitting it.

    The clusters are asked. Exit code 100 if it would fail at once: no cluster can ever take it, or too many wait
    already.
    """
    from ray_multicluster_scheduler import UnifiedScheduler
    from ray_multicluster_scheduler.cli.service.client import check_there, connect, find
    from ray_multicluster_scheduler.common.tables import decision_rows, fails_at_once

    amounts = amounts_of(cpus, gpus, memory, resource)
    if config is None and find(address) is not None:
        check_there(connect(address))
    with UnifiedScheduler(config=config, address=address) as scheduler:
        decision = scheduler.plan(
            amounts or None,
            kind=kind.value,
            tags=tag or None,
            require_tags=require_tag or None,
            preferred_cluster=preferred_cluster,
            fallback=fallback.value,
        )
    emit(decision.to_dict(), output, lambda: plan_lines(decision))
    if decision.code == "QUEUE_FULL" or fails_at_once(decision_rows(decision)):
        raise typer.Exit(exit_codes.FAILED)


def plan_lines(decision: SchedulingDecision | Mapping[str, Any]) -> FittingLines:
    """For people."""
    from ray_multicluster_scheduler.cli.layout.columns import fitting_columns
    from ray_multicluster_scheduler.cli.layout.lines import FittingLines
    from ray_multicluster_scheduler.common.tables import decision_text

    return FittingLines(lambda width: decision_text(decision, fitting_columns(width)))


def amounts_of(
    cpus: float | None, gpus: float | None, memory: str | None, resource: list[str] | None
) -> dict[str, Any]:
    """What these options ask for. Raises BadParameter."""
    said = {"CPU": cpus, "GPU": gpus, "memory": memory}
    return {**_amounts(resource or []), **{name: value for name, value in said.items() if value is not None}}


def _amounts(given: list[str]) -> dict[str, float]:
    amounts: dict[str, float] = {}
    for text in given:
        name, sign, amount = text.partition("=")
        try:
            if not name or not sign:
                raise ValueError
            amounts[name] = float(amount)
        except ValueError:
            raise typer.BadParameter(f"{text!r} is not NAME=AMOUNT, such as tpu=2.", param_hint="--resource") from None
    return amounts
