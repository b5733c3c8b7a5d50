"""`rmcs plan`: where something would go now, and why; nothing is submitted."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from ray_multicluster_scheduler.cli import exit_codes
from ray_multicluster_scheduler.cli.output import Format, Output, emit


class Kind(StrEnum):
    task = "task"
    actor = "actor"
    job = "job"


class Fallback(StrEnum):
    any = "any"
    wait = "wait"


def plan(
    kind: Annotated[Kind, typer.Option("--kind", help="What it would be.")] = Kind.task,
    cpus: Annotated[float | None, typer.Option("--cpus", min=0, help="CPUs that it needs.")] = None,
    gpus: Annotated[float | None, typer.Option("--gpus", min=0, help="GPUs that it needs.")] = None,
    memory: Annotated[str | None, typer.Option("--memory", help='Memory that it needs, such as "8GiB".')] = None,
    resource: Annotated[list[str] | None, typer.Option("--resource", help="name=amount; may be repeated.")] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", help="Prefer clusters with it; may be repeated.")] = None,
    require_tag: Annotated[
        list[str] | None, typer.Option("--require-tag", help="Only clusters with it; may be repeated.")
    ] = None,
    preferred_cluster: Annotated[str | None, typer.Option("--preferred-cluster", help="Where it should go.")] = None,
    fallback: Annotated[Fallback, typer.Option("--fallback", help="If that one cannot take it.")] = Fallback.any,
    output: Output = Format.table,
    config: Annotated[
        Path | None, typer.Option("--config", help="A clusters.yaml; default: looked for as the library does.")
    ] = None,
) -> None:
    """Ask where something would go now, without submitting it.

    A task, an actor or a job; the clusters are asked. Ends with 100 if it would fail at once: no cluster can ever take
    it, or too many wait already.
    """
    from ray_multicluster_scheduler import UnifiedScheduler
    from ray_multicluster_scheduler.cli.service import check_there, connect, find
    from ray_multicluster_scheduler.common.decision_table import decision_lines, decision_text, fails_at_once

    amounts = amounts_of(cpus, gpus, memory, resource)
    if config is None and find() is not None:
        check_there(connect())
    with UnifiedScheduler(config=config) as scheduler:
        decision = scheduler.plan(
            amounts or None,
            kind=kind.value,
            tags=tag or None,
            require_tags=require_tag or None,
            preferred_cluster=preferred_cluster,
            fallback=fallback.value,
        )
    emit(decision.to_dict(), output, lambda: decision_text(decision))
    if decision.code == "QUEUE_FULL" or fails_at_once(decision_lines(decision)):
        raise typer.Exit(exit_codes.FAILED)


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
            raise typer.BadParameter(f"{text!r} is not name=amount, such as tpu=2.", param_hint="--resource") from None
    return amounts
