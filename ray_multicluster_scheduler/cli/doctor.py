"""`rmcs doctor`: what commonly goes wrong, and how to mend it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ray_multicluster_scheduler.cli.doctor_findings import Finding, Verdict, well, wrong
from ray_multicluster_scheduler.cli.exit_codes import FAILED
from ray_multicluster_scheduler.cli.options import Config
from ray_multicluster_scheduler.cli.output import Format, Output, emit
from ray_multicluster_scheduler.cli.service import Address, find
from ray_multicluster_scheduler.common.line_text import escaped_lines

if TYPE_CHECKING:
    from rich.console import Group

    from ray_multicluster_scheduler.control_plane.config import FleetConfig

_MARKS = {Verdict.ok: ("✓", "green"), Verdict.warning: ("!", "yellow"), Verdict.wrong: ("✗", "red")}
_DEEP_S = 90.0


def doctor(
    config: Config = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also run a tiny task on each cluster: can its agent dial back?")
    ] = False,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Look for what commonly goes wrong, and say how to mend it.

    Nothing is changed and, without --deep, nothing is started anywhere. Exit code 100 if something is wrong.
    """
    found = list(_examine(config, address, deep=deep))
    emit([one.to_dict() for one in found], output, lambda: doctor_picture(found))
    if any(one.verdict is Verdict.wrong for one in found):
        raise typer.Exit(FAILED)


def _examine(path: Path | None, address: str | None, *, deep: bool) -> Iterator[Finding]:
    import asyncio

    from ray_multicluster_scheduler.cli import doctor_clusters, doctor_here, doctor_service
    from ray_multicluster_scheduler.cli.lost_config import next_step_of
    from ray_multicluster_scheduler.common.exception import SchedulerError
    from ray_multicluster_scheduler.control_plane.config import load_config
    from ray_multicluster_scheduler.control_plane.config.loader import NothingConfiguredError

    yield from doctor_here.home()
    about = None
    try:
        named = find(address)
    except SchedulerError as error:
        yield wrong("service", error.message, error.next_step or "", error.code)
        named = None
    else:
        if named is None:
            yield doctor_service.none_found()
        else:
            findings, about = doctor_service.look(named)
            yield from findings
    try:
        config = load_config(path)
    except NothingConfiguredError as error:
        if about is None:
            yield wrong("configuration", error.message, next_step_of(error), error.code)
        else:
            yield well("configuration", "none is here, and none is needed: the service has its own")
        return
    except SchedulerError as error:
        yield wrong("configuration", error.message, error.next_step or "", error.code)
        return
    yield well("configuration", f"{config.source} is right: {', '.join(config.names)}")
    if named is None:
        yield from doctor_here.agent_port(config)
    ours = None if about is None else str(about["control_plane"])
    yield from asyncio.run(doctor_clusters.look(config.clusters, ours))
    if deep:
        yield from _deeply(config)


def _deeply(config: FleetConfig) -> Iterator[Finding]:
    """A task that goes there and back shows all that lies between."""
    from ray_multicluster_scheduler import UnifiedScheduler
    from ray_multicluster_scheduler.common.exception import SchedulerError

    with UnifiedScheduler(config=config) as scheduler:
        handles = {
            name: scheduler.submit_task_async(
                len, ("there and back",), preferred_cluster=name, fallback="wait", queue_timeout=_DEEP_S, name="doctor"
            )
            for name in config.names
        }
        for name, handle in handles.items():
            try:
                handle.result(timeout=2 * _DEEP_S)
            except SchedulerError as error:
                code = str(handle.explain().get("code") or error.code)
                yield wrong(name, f"a task could not go there and back: {error.message}", error.next_step or "", code)
            else:
                yield well(name, "a task went there and back")


def doctor_picture(found: list[Finding]) -> Group:
    """A line for each thing that was looked at, what to do where it is not well, and how many are how."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    lines: list[Table | Padding | Text] = []
    for one in found:
        mark, style = _MARKS[one.verdict]
        line = Table.grid(padding=(0, 1, 0, 0))
        line.add_row(Text(mark, style), Text.assemble((f"{one.about}: ", "bold"), escaped_lines(one.says)))
        lines.append(line)
        if one.verdict is not Verdict.ok:
            more = f" (more: rmcs explain {one.code})" if one.code else ""
            what = Text(escaped_lines(f"What to do: {one.mend}{more}"))
            lines.append(Padding(what, (0, 0, 0, 4), expand=False))  # also what is folded
    bad, odd = (sum(one.verdict is verdict for one in found) for verdict in (Verdict.wrong, Verdict.warning))
    lines.append(Text(f"{bad} wrong, {odd} to look at, {len(found) - bad - odd} well"))
    return Group(*lines)
