"""`rmcs fleet`: real Ray clusters on this machine that stay up until they are told to go."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from ray_multicluster_scheduler.cli.exit_codes import INTERRUPTED, NOT_DONE
from ray_multicluster_scheduler.cli.layout.output import Format, Output, emit, say
from ray_multicluster_scheduler.cli.layout.table import FittingTable

if TYPE_CHECKING:
    from ray_multicluster_scheduler.local_fleet import LocalCluster
    from ray_multicluster_scheduler.local_fleet.fleet_home import ClusterStatus, FleetHome, KnownFleet

app = typer.Typer(
    help="Start and stop local Ray clusters on this machine.", no_args_is_help=True, rich_markup_mode=None
)

_KNOWN = {"linux": ["linux", "x86_64"], "mac": ["macos", "arm64"]}
_ANEW = "`rmcs fleet down`, then `rmcs fleet up`"
_TO_DO = {
    "down": "it died; `rmcs fleet up` starts it again, and leaves the others alone",
    "lost": f"the process that looked after it was killed; {_ANEW}",
    "paused": f"its processes are stopped (SIGSTOP); let them go on with `kill -CONT`, or {_ANEW}",
    "not answering": f"look again in a moment (`rmcs fleet status`); if it stays so, {_ANEW}",
}
_NOT_IN_FOREGROUND = (
    "--foreground is not applied: the fleet that is up does not end with this command; for one that ends by Ctrl+C "
    "here, `rmcs fleet down` first"
)
_NONE = "No local fleet is up. Start one with `rmcs fleet up`."
_COUNT, _CPUS = 2, 2
TITLES = ("CLUSTER", "STATE", "HEAD", "DASHBOARD", "TAGS", "PROCESSES")


@app.command()
def up(
    clusters: Annotated[
        int | None,
        typer.Option("--clusters", "-n", min=1, max=16, help="So many clusters.", show_default=str(_COUNT)),
    ] = None,
    cpus: Annotated[
        int | None, typer.Option("--cpus", min=1, help="CPUs that each cluster offers.", show_default=str(_CPUS))
    ] = None,
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay here until Ctrl+C, then stop them.")] = False,
    output: Output = Format.table,
) -> None:
    """Start local clusters in the background.

    They stay up until `rmcs fleet down`. If they are up already, those that died are started again, under the
    same addresses; the others are left alone, and so is how many there are, and of how many CPUs.
    """
    from ray_multicluster_scheduler.local_fleet import background
    from ray_multicluster_scheduler.local_fleet.daemon import hold
    from ray_multicluster_scheduler.local_fleet.fleet_home import FleetHome
    from ray_multicluster_scheduler.local_fleet.interpreter import find_ray_python

    home = FleetHome()
    known = background.running(home)
    if known is not None:
        _start_what_died(home, output, not_applied(known, clusters, cpus), foreground=foreground)
        return
    python = find_ray_python()
    count = clusters or _COUNT
    described = describe(count, cpus or _CPUS)
    say(f"starting {count} local Ray cluster{'s' if count > 1 else ''} (about 10 seconds) …")
    if foreground:
        ready = partial(_announce, home, "Ctrl+C", output)
        hold(home, described, ray_python=python, progress=_progress, ready=lambda _fleet: ready())
        say("the local fleet is stopped")
    else:
        try:
            background.start(home, described, ray_python=python, progress=_progress)
        except KeyboardInterrupt:
            say(_after_interrupt(home))
            raise typer.Exit(INTERRUPTED) from None
        _announce(home, "`rmcs fleet down`", output)


@app.command()
def down(output: Output = Format.table) -> None:
    """Stop the local fleet, and remove all of it.

    Also what a killed one left.
    """
    from ray_multicluster_scheduler.local_fleet import background
    from ray_multicluster_scheduler.local_fleet.fleet_home import FleetHome

    stopped = background.stop(FleetHome())
    say("the local fleet is stopped" if stopped else "no local fleet is up")
    if output is not Format.table:
        emit({"stopped": stopped}, output, str)


@app.command()
def status(output: Output = Format.table) -> None:
    """Show each local cluster: state, addresses, processes."""
    from ray_multicluster_scheduler.local_fleet.fleet_home import FleetHome

    home = FleetHome()
    _print_status(home, output)
    if output is Format.table and home.read() is not None:
        _say_how_to_use(home)


def describe(count: int, cpus: int) -> list[LocalCluster]:
    """The clusters `up` starts: linux, mac, cluster3, cluster4, …"""
    from ray_multicluster_scheduler.local_fleet import LocalCluster

    names = [*_KNOWN, *(f"cluster{number}" for number in range(len(_KNOWN) + 1, count + 1))][:count]
    return [LocalCluster(name, num_cpus=cpus, tags=_KNOWN.get(name, [])) for name in names]


def _progress(cluster: str, text: str) -> None:
    say(f"   {cluster}: {text}")


def _announce(home: FleetHome, how_to_stop: str, output: Format) -> bool:
    _print_status(home, output)
    _say_how_to_use(home)
    say(f"stop it: {how_to_stop}")
    return True


def _after_interrupt(home: FleetHome) -> str:
    """Whoever started it has waited for its end, unless that was interrupted, too."""
    from ray_multicluster_scheduler.common.exception import ConfigurationError

    try:
        with home.held():
            return "what had started of the local fleet is stopped again: nothing of it is left"
    except ConfigurationError:
        return "what had started of the local fleet is being stopped, which may take a minute"


def _say_how_to_use(home: FleetHome) -> None:
    say(f"use it:  export RMCS_CONFIG={home.config_path}")


def not_applied(known: KnownFleet, clusters: int | None, cpus: int | None) -> str:
    """What was asked for and is otherwise in the fleet that is up, in words; empty: nothing."""
    up = len(known.clusters)
    each = {one.num_cpus for one in known.clusters}
    found = [f"{up} cluster{'s' if up != 1 else ''}, not {clusters}"] if clusters not in (None, up) else []
    if cpus is not None and each != {cpus}:
        offered = " or ".join(str(one) for one in sorted(one for one in each if one is not None))
        found.append(f"{offered or 'an unknown number of'} CPUs each, not {cpus}")
    return " and ".join(found)


def _start_what_died(home: FleetHome, output: Format, unlike: str, *, foreground: bool) -> None:
    """Ends with 1, and what to do, if something is wrong that only a person can judge."""
    from ray_multicluster_scheduler.local_fleet import background

    died = [each.name for each in background.status(home) if each.state == "down"]
    if died:
        say(f"the local fleet is up, but {_and(died)} died: starting again (about 10 seconds) …")
        background.start_again(home, died, _progress)
        say(f"started again, under the same addresses: {_and(died)}")
    else:
        say("a local fleet is up already")
    if unlike:
        say(f"it stays as it is, with {unlike}; to have it otherwise, `rmcs fleet down` first")
    if foreground:
        say(_NOT_IN_FOREGROUND)
    all_up = _print_status(home, output)
    _say_how_to_use(home)
    if not all_up:
        raise typer.Exit(NOT_DONE)


def _print_status(home: FleetHome, output: Format) -> bool:
    """Is all of it up? If not, what to do is said."""
    from ray_multicluster_scheduler.local_fleet import background
    from ray_multicluster_scheduler.local_fleet.fleet_home import status_as_json

    found = background.status(home)
    told = {
        "up": bool(found),
        "config": str(home.config_path) if found else None,
        "clusters": [status_as_json(each) for each in found],
    }
    emit(told, output, lambda: local_table(found) if found else _NONE)
    for words in to_do(found) if output is Format.table else ():
        say(words)
    return bool(found) and all(each.state == "up" for each in found)


def local_table(found: Sequence[ClusterStatus]) -> FittingTable:
    """One row for each cluster on this machine."""
    return FittingTable(TITLES, [_cells(each) for each in found], cut=("TAGS",), drop=("PROCESSES", "TAGS"))


def to_do(found: Sequence[ClusterStatus]) -> list[str]:
    """What to do about each that is not up."""
    return [f"{each.name} is {each.state}: {_TO_DO[each.state]}" for each in found if each.state in _TO_DO]


def _and(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _cells(each: ClusterStatus) -> tuple[str, ...]:
    more = " …" if len(each.pids) > 1 else ""
    pids = f"{len(each.pids)} ({each.pids[0]}{more})" if each.pids else "–"
    return (each.name, each.state, each.head_address, each.dashboard, ",".join(each.tags) or "–", pids)
