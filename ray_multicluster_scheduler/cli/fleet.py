"""`rmcs fleet`: real Ray clusters on this machine that stay up until they are told to go."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from ray_multicluster_scheduler.cli.output import Format, Output, emit, plain_table, say

if TYPE_CHECKING:
    from ray_multicluster_scheduler.local_fleet import LocalCluster
    from ray_multicluster_scheduler.local_fleet.fleet_home import ClusterStatus, FleetHome

app = typer.Typer(
    help="Start and stop local Ray clusters on this machine.", no_args_is_help=True, rich_markup_mode=None
)

_KNOWN = {"linux": ["linux", "x86_64"], "mac": ["macos", "arm64"]}
_NONE = "No local fleet is up. Start one with `rmcs fleet up`."
TITLES = ("CLUSTER", "STATE", "HEAD", "DASHBOARD", "TAGS", "PROCESSES")


@app.command()
def up(
    clusters: Annotated[int, typer.Option("--clusters", "-n", min=1, max=16, help="So many clusters.")] = 2,
    cpus: Annotated[int, typer.Option("--cpus", min=1, help="CPUs that each cluster offers.")] = 2,
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay here until Ctrl+C, then stop them.")] = False,
    output: Output = Format.table,
) -> None:
    """Start local clusters in the background.

    They stay up until `rmcs fleet down`.
    """
    from ray_multicluster_scheduler.local_fleet import background
    from ray_multicluster_scheduler.local_fleet.daemon import hold
    from ray_multicluster_scheduler.local_fleet.fleet_home import FleetHome
    from ray_multicluster_scheduler.local_fleet.interpreter import find_ray_python

    home = FleetHome()
    if background.running(home) is not None:
        say("a local fleet is up already")
        _print_status(home, output)
        return
    python = find_ray_python()
    described = describe(clusters, cpus)
    say(f"starting {clusters} local Ray cluster{'s' if clusters > 1 else ''} (about 10 seconds) …")
    if foreground:
        ready = partial(_announce, home, "Ctrl+C", output)
        hold(home, described, ray_python=python, progress=_progress, ready=lambda _fleet: ready())
        say("the local fleet is stopped")
    else:
        background.start(home, described, ray_python=python, progress=_progress)
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

    _print_status(FleetHome(), output)


def describe(count: int, cpus: int) -> list[LocalCluster]:
    """The clusters `up` starts: linux, mac, cluster3, cluster4, …"""
    from ray_multicluster_scheduler.local_fleet import LocalCluster

    names = [*_KNOWN, *(f"cluster{number}" for number in range(len(_KNOWN) + 1, count + 1))][:count]
    return [LocalCluster(name, num_cpus=cpus, tags=_KNOWN.get(name, [])) for name in names]


def _progress(cluster: str, text: str) -> None:
    say(f"   {cluster}: {text}")


def _announce(home: FleetHome, how_to_stop: str, output: Format) -> bool:
    _print_status(home, output)
    say(f"use it:  export RMCS_CONFIG={home.config_path}")
    say(f"stop it: {how_to_stop}")
    return True


def _print_status(home: FleetHome, output: Format) -> None:
    from ray_multicluster_scheduler.local_fleet import background
    from ray_multicluster_scheduler.local_fleet.fleet_home import status_as_json

    found = background.status(home)
    told = {
        "up": bool(found),
        "config": str(home.config_path) if found else None,
        "clusters": [status_as_json(each) for each in found],
    }
    emit(told, output, lambda: plain_table(TITLES, [_cells(each) for each in found]) if found else _NONE)


def _cells(each: ClusterStatus) -> tuple[str, ...]:
    pids = f"{len(each.pids)} ({each.pids[0]} …)" if each.pids else "–"
    return (each.name, each.state, each.head_address, each.dashboard, ",".join(each.tags) or "–", pids)
