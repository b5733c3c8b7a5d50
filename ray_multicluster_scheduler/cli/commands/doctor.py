"""`rmcs doctor`: what commonly goes wrong, and how to mend it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ray_multicluster_scheduler.cli.arguments.options import Config
from ray_multicluster_scheduler.cli.doctor.findings import Finding, Verdict, well, wrong
from ray_multicluster_scheduler.cli.exit_codes import FAILED
from ray_multicluster_scheduler.cli.layout.output import Format, Output, emit
from ray_multicluster_scheduler.cli.service.client import Address, find
from ray_multicluster_scheduler.cli.terminal.status_line import Meanwhile
from ray_multicluster_scheduler.common.control_characters import escaped_lines

if TYPE_CHECKING:
    from rich.console import Group

    from ray_multicluster_scheduler.cli.service.item_wait import Reason
    from ray_multicluster_scheduler.control_plane.config import FleetConfig

_MARKS = {Verdict.ok: ("✓", "green"), Verdict.warning: ("!", "yellow"), Verdict.wrong: ("✗", "red")}


def doctor(
    config: Config = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also run a tiny task on each cluster: can its agent dial back?")
    ] = False,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Look for what commonly goes wrong, and say how to mend it.

    Nothing is changed and, without --deep, nothing is started anywhere. The tasks of --deep go by the service, if one
    answers and no --config is given. Exit code 100 if something is wrong.
    """
    with Meanwhile() as reason:
        found = list(_examine(config, address, reason, deep=deep))
    emit([one.to_dict() for one in found], output, lambda: doctor_picture(found))
    if any(one.verdict is Verdict.wrong for one in found):
        raise typer.Exit(FAILED)


def _examine(path: Path | None, address: str | None, reason: Reason, *, deep: bool) -> Iterator[Finding]:
    import asyncio

    from ray_multicluster_scheduler.cli.doctor import cluster_checks, local_checks, round_trip, service_round_trip

    yield from local_checks.home()
    reason.show("looking at the service")
    named, about, findings = _service(address)
    yield from findings
    config, finding = _configuration(path, about)
    yield finding
    if config is not None:
        if named is None:
            yield from local_checks.agent_port(config)
        ours = None if about is None else str(about["control_plane"])
        reason.show(f"looking at {', '.join(config.names)}")
        yield from asyncio.run(cluster_checks.look(config.clusters, ours))
    if not deep:
        return
    if about is None or named is None or path is not None:
        yield from _deeply(lambda: () if config is None else round_trip.from_here(config, reason))
    else:
        yield from _deeply(lambda: service_round_trip.by_the_service(named, about, reason))


def _service(address: str | None) -> tuple[str | None, dict[str, Any] | None, list[Finding]]:
    """Where it is, what it says of itself, and what is to be said of it. None: there is none, or it does not answer."""
    from ray_multicluster_scheduler.cli.doctor import service_checks
    from ray_multicluster_scheduler.common.exception import SchedulerError

    try:
        named = find(address)
    except SchedulerError as error:
        return None, None, [wrong("service", error.message, error.next_step or "", error.code)]
    if named is None:
        return None, None, [service_checks.none_found()]
    findings, about = service_checks.look(named)
    return named, about, findings


def _configuration(path: Path | None, about: dict[str, Any] | None) -> tuple[FleetConfig | None, Finding]:
    """Where a service answers, none is needed here."""
    from ray_multicluster_scheduler.cli.config_hints import next_step_of
    from ray_multicluster_scheduler.common.exception import SchedulerError
    from ray_multicluster_scheduler.control_plane.config import load_config
    from ray_multicluster_scheduler.control_plane.config.loader import NothingConfiguredError

    try:
        config = load_config(path)
    except NothingConfiguredError as error:
        if about is None:
            return None, wrong("configuration", error.message, next_step_of(error), error.code)
        return None, well("configuration", "none is here, and none is needed: the service has its own")
    except SchedulerError as error:
        return None, wrong("configuration", error.message, error.next_step or "", error.code)
    return config, well("configuration", f"{config.source} is right: {', '.join(config.names)}")


def _deeply(tasks: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """What keeps them from being sent, or from being waited for, is one more finding."""
    from ray_multicluster_scheduler.common.exception import SchedulerError

    try:
        yield from tasks()
    except SchedulerError as error:
        yield wrong("tasks", error.message, error.next_step or "", error.code)


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
