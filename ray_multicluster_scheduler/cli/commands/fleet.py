"""`rmcs fleet`: start, stop and show real Ray clusters on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from ray_multicluster_scheduler.cli.exit_codes import INTERRUPTED, NOT_DONE
from ray_multicluster_scheduler.cli.layout.output import Format, Output, emit, notify
from ray_multicluster_scheduler.cli.layout.table import FittingTable
from ray_multicluster_scheduler.common.exception import ConfigurationError

if TYPE_CHECKING:
    from ray_multicluster_scheduler.local_fleet import LocalCluster
    from ray_multicluster_scheduler.local_fleet.fleet_home import BackgroundFleet, ClusterStatus, FleetHome

app = typer.Typer(
    help="Start and stop local Ray clusters on this machine.", no_args_is_help=True, rich_markup_mode=None
)

_KNOWN = {"linux": ["linux", "x86_64"], "mac": ["macos", "arm64"]}
_RESTART = "`rmcs fleet down`, then `rmcs fleet up`"
_REMEDIES = {
    "down": "it died; `rmcs fleet up` starts it again, and leaves the others alone",
    "lost": f"its supervisor process was killed; {_RESTART}",
    "paused": f"its processes are stopped (SIGSTOP); continue them with `kill -CONT`, or {_RESTART}",
    "not answering": f"check again in a moment (`rmcs fleet status`); if it stays so, {_RESTART}",
}
_NOT_IN_FOREGROUND = "--foreground is ignored: the fleet is already up in the background; `rmcs fleet down` first"
_NONE = "No local fleet is up. Start one with `rmcs fleet up`."
_COUNT, _CPUS = 2, 2
TITLES = ("CLUSTER", "STATE", "HEAD", "DASHBOARD", "TAGS", "PROCESSES")


@app.command()
def up(
    clusters: Annotated[
        int | None,
        typer.Option("--clusters", "-n", min=1, max=16, help="The number of clusters.", show_default=str(_COUNT)),
    ] = None,
    cpus: Annotated[
        int | None, typer.Option("--cpus", min=1, help="CPUs of each cluster.", show_default=str(_CPUS))
    ] = None,
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay here until Ctrl+C, then stop them.")] = False,
    output: Output = Format.table,
) -> None:
    """Start local clusters in the background.

    They stay up until `rmcs fleet down`. If they are up already, those that died are restarted at the same addresses;
    the others, and the numbers of clusters and CPUs, stay as they are. A fleet that runs under another RMCS_HOME is
    named, and left alone.
    """
    from ray_multicluster_scheduler.local_fleet import background
    from ray_multicluster_scheduler.local_fleet.fleet_home import FleetHome
    from ray_multicluster_scheduler.local_fleet.interpreter import find_ray_python

    home = FleetHome()
    known = background.running(home)
    if known is not None:
        _restart_dead(home, output, not_applied(known, clusters, cpus), foreground=foreground)
        return
    _mention_others(home)
    python = find_ray_python()
    count = clusters or _COUNT
    described = describe(count, cpus or _CPUS)
    notify(f"starting {count} local Ray cluster{'s' if count > 1 else ''} (about 10 seconds) …")
    if foreground:
        ready = partial(_announce, home, "Ctrl+C", output)
        background.hold(home, described, ray_python=python, progress=_progress, ready=lambda _fleet: ready())
        notify("the local fleet is stopped")
    else:
        try:
            background.start(home, described, ray_python=python, progress=_progress)
        except KeyboardInterrupt:
            try:  # the start stops its clusters before it ends, unless that was interrupted, too
                with home.held():
                    notify("the clusters that had started are stopped again: nothing is left")
            except ConfigurationError:
                notify("the clusters that had started are being stopped, which may take a minute")
            raise typer.Exit(INTERRUPTED) from None
        _announce(home, "`rmcs fleet down`", output)


@app.command()
def down(output: Output = Format.table) -> None:
    """Stop the local fleet, and remove its files.

    Also cleans up after one that was killed.
    """
    from ray_multicluster_scheduler.local_fleet import background
    from ray_multicluster_scheduler.local_fleet.fleet_home import FleetHome

    home = FleetHome()
    stopped = background.stop(home)
    notify("the local fleet is stopped" if stopped else "no local fleet is up")
    if not stopped:
        _mention_others(home)
    if output is not Format.table:
        emit({"stopped": stopped}, output, str)


@app.command()
def status(output: Output = Format.table) -> None:
    """Show each local cluster: state, addresses, processes."""
    from ray_multicluster_scheduler.local_fleet.fleet_home import FleetHome

    home = FleetHome()
    _print_status(home, output)
    if output is Format.table and home.read() is not None:
        _print_usage(home)
    if home.read() is None:
        _mention_others(home)


def describe(count: int, cpus: int) -> list[LocalCluster]:
    """The clusters `up` starts: linux, mac, cluster3, cluster4, …"""
    from ray_multicluster_scheduler.local_fleet import LocalCluster

    names = [*_KNOWN, *(f"cluster{number}" for number in range(len(_KNOWN) + 1, count + 1))][:count]
    return [LocalCluster(name, num_cpus=cpus, tags=_KNOWN.get(name, [])) for name in names]


def _progress(cluster: str, text: str) -> None:
    notify(f"   {cluster}: {text}")


def _mention_others(home: FleetHome) -> None:
    """Two fleets share the machine's CPUs and memory, so a forgotten one should be known."""
    from ray_multicluster_scheduler.local_fleet import background

    for other, fleet in background.others(home):
        names = ", ".join(each.name for each in fleet.clusters)
        notify(
            f"another local fleet of yours ({names}) runs, with RMCS_HOME={other.root.parent}; "
            f"use it: export RMCS_CONFIG={other.config_path}; stop it: RMCS_HOME={other.root.parent} rmcs fleet down"
        )


def _announce(home: FleetHome, how_to_stop: str, output: Format) -> bool:
    _print_status(home, output)
    _print_usage(home)
    notify(f"stop it: {how_to_stop}")
    return True


def _print_usage(home: FleetHome) -> None:
    notify(f"use it:  export RMCS_CONFIG={home.config_path}")


def not_applied(known: BackgroundFleet, clusters: int | None, cpus: int | None) -> str:
    """Differences between the running fleet and the options; empty if there are none."""
    up = len(known.clusters)
    each = {one.num_cpus for one in known.clusters}
    found = [f"{up} cluster{'s' if up != 1 else ''}, not {clusters}"] if clusters not in (None, up) else []
    if cpus is not None and each != {cpus}:
        offered = " or ".join(str(one) for one in sorted(one for one in each if one is not None))
        found.append(f"{offered or 'an unknown number of'} CPUs each, not {cpus}")
    return " and ".join(found)


def _restart_dead(home: FleetHome, output: Format, difference: str, *, foreground: bool) -> None:
    """Exit code 1 if a cluster is in a state that needs a decision of the user."""
    from ray_multicluster_scheduler.local_fleet import background

    died = [each.name for each in background.status(home) if each.state == "down"]
    if died:
        notify(f"the local fleet is up, but {_join_names(died)} died: restarting (about 10 seconds) …")
        background.start_again(home, died, _progress)
        notify(f"restarted at the same addresses: {_join_names(died)}")
    else:
        notify("a local fleet is up already")
    if difference:
        notify(f"it stays as it is, with {difference}; to change that, `rmcs fleet down` first")
    if foreground:
        notify(_NOT_IN_FOREGROUND)
    all_up = _print_status(home, output)
    _print_usage(home)
    if not all_up:
        raise typer.Exit(NOT_DONE)


def _print_status(home: FleetHome, output: Format) -> bool:
    """Are all clusters up? If not, prints what to do."""
    from ray_multicluster_scheduler.local_fleet import background

    found = background.status(home)
    shown = {
        "up": bool(found),
        "config": str(home.config_path) if found else None,
        "clusters": [asdict(each) for each in found],
    }
    emit(shown, output, lambda: local_table(found) if found else _NONE)
    for text in remedies(found) if output is Format.table else ():
        notify(text)
    return bool(found) and all(each.state == "up" for each in found)


def local_table(found: Sequence[ClusterStatus]) -> FittingTable:
    """One row for each cluster on this machine."""
    return FittingTable(TITLES, [_cells(each) for each in found], cut=("TAGS",), drop=("PROCESSES", "TAGS"))


def remedies(found: Sequence[ClusterStatus]) -> list[str]:
    """Next steps, one for each cluster that is not up."""
    return [f"{each.name} is {each.state}: {_REMEDIES[each.state]}" for each in found if each.state in _REMEDIES]


def _join_names(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _cells(each: ClusterStatus) -> tuple[str, ...]:
    more = " …" if len(each.pids) > 1 else ""
    pids = f"{len(each.pids)} ({each.pids[0]}{more})" if each.pids else "–"
    return (each.name, each.state, each.head_address, each.dashboard, ",".join(each.tags) or "–", pids)
