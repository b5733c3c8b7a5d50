"""`rmcs doctor`: check for common problems, and say how to fix them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ray_multicluster_scheduler.cli.arguments.options import Config
from ray_multicluster_scheduler.cli.doctor.findings import Finding, Verdict, ok, problem
from ray_multicluster_scheduler.cli.exit_codes import FAILED
from ray_multicluster_scheduler.cli.layout.output import Format, Output, ProgressLine, Spinner, emit
from ray_multicluster_scheduler.cli.service.client import Address, find_address
from ray_multicluster_scheduler.common.control_characters import escaped_lines
from ray_multicluster_scheduler.common.exception import SchedulerError

if TYPE_CHECKING:
    from rich.console import Group

    from ray_multicluster_scheduler.control_plane.config import FleetConfig

_MARKS = {Verdict.ok: ("✓", "green"), Verdict.warning: ("!", "yellow"), Verdict.wrong: ("✗", "red")}


def doctor(
    config: Config = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also run a tiny task on each cluster, which needs its agent.")
    ] = False,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Check for common problems, and say how to fix them.

    Changes nothing and, without --deep, starts nothing anywhere. The tasks of --deep go through the service, if one
    answers and no --config is given. Exit code 100 if there is a problem.
    """
    with Spinner() as progress:
        found = list(_findings(config, address, progress, deep=deep))
    emit([one.to_dict() for one in found], output, lambda: findings_text(found))
    if any(one.verdict is Verdict.wrong for one in found):
        raise typer.Exit(FAILED)


def _findings(path: Path | None, address: str | None, progress: ProgressLine, *, deep: bool) -> Iterator[Finding]:
    import asyncio

    from ray_multicluster_scheduler.cli.doctor import cluster_checks, local_checks, round_trip

    yield from local_checks.home()
    progress.show("checking the service")
    named, about, findings = _service(address)
    yield from findings
    config, finding = _configuration(path, about)
    yield finding
    if config is not None:
        if named is None:
            yield from local_checks.agent_port(config)
        ours = None if about is None else str(about["control_plane"])
        progress.show(f"checking {', '.join(config.names)}")
        yield from asyncio.run(cluster_checks.check_clusters(config.clusters, ours))
    if not deep:
        return
    try:
        if about is not None and named is not None and path is None:
            yield from round_trip.through_service(named, about, progress)
        elif config is not None:
            yield from round_trip.from_here(config, progress)
    except SchedulerError as error:
        yield problem("tasks", error.message, error.next_step or "", error.code)


def _service(address: str | None) -> tuple[str | None, dict[str, Any] | None, list[Finding]]:
    """Its address, its description and its findings. None: there is none, or it does not answer."""
    from ray_multicluster_scheduler.cli.doctor import service_checks

    try:
        named = find_address(address)
    except SchedulerError as error:
        return None, None, [problem("service", error.message, error.next_step or "", error.code)]
    if named is None:
        return None, None, [service_checks.no_service()]
    findings, about = service_checks.check_service(named)
    return named, about, findings


def _configuration(path: Path | None, about: dict[str, Any] | None) -> tuple[FleetConfig | None, Finding]:
    """The configuration; not needed where a service answers."""
    from ray_multicluster_scheduler.cli.troubleshooting import next_step_of
    from ray_multicluster_scheduler.control_plane.config import load_config
    from ray_multicluster_scheduler.control_plane.config.loader import NothingConfiguredError

    try:
        config = load_config(path)
    except NothingConfiguredError as error:
        if about is None:
            return None, problem("configuration", error.message, next_step_of(error), error.code)
        return None, ok("configuration", "none is here, and none is needed: the service has its own")
    except SchedulerError as error:
        return None, problem("configuration", error.message, error.next_step or "", error.code)
    return config, ok("configuration", f"{config.source} is valid: {', '.join(config.names)}")


def findings_text(found: list[Finding]) -> Group:
    """A line for each finding, what to do about problems, and the counts."""
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
            what = Text(escaped_lines(f"What to do: {one.fix}{more}"))
            lines.append(Padding(what, (0, 0, 0, 4), expand=False))
    problems, warnings = (sum(one.verdict is verdict for one in found) for verdict in (Verdict.wrong, Verdict.warning))
    lines.append(Text(f"{problems} wrong, {warnings} warnings, {len(found) - problems - warnings} ok"))
    return Group(*lines)
