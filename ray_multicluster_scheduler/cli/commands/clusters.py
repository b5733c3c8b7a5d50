"""`rmcs clusters`: the state and load of all clusters, refreshed; and commands to check, change and drain them.

Without a service, this process makes the list with its own scheduler, and changes are sent to the running programs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from ray_multicluster_scheduler.app.client_api.cluster_rows import cordon_text, pause_text
from ray_multicluster_scheduler.cli import exit_codes
from ray_multicluster_scheduler.cli.arguments import completion
from ray_multicluster_scheduler.cli.arguments.options import Config, Reason, Timeout
from ray_multicluster_scheduler.cli.arguments.selectors import UNFINISHED
from ray_multicluster_scheduler.cli.layout.cluster_tables import GIB, cluster_state_cell, load, load_with_age, nodes
from ray_multicluster_scheduler.cli.layout.output import (
    Format,
    Output,
    ProgressLine,
    emit,
    emit_folded,
    facts_table,
    notify,
)
from ray_multicluster_scheduler.cli.layout.table import FittingTable
from ray_multicluster_scheduler.cli.layout.times import UNKNOWN, ago
from ray_multicluster_scheduler.cli.service.client import Address, Service, api_path, connect, find_address, with_query
from ray_multicluster_scheduler.cli.service.item_wait import POLL_S, Deadline, retry_while_away
from ray_multicluster_scheduler.common.control_characters import escaped
from ray_multicluster_scheduler.common.exception import ConfigurationError, SchedulerError

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from ray_multicluster_scheduler.control_plane.config import ClusterConfig
    from ray_multicluster_scheduler.control_plane.config.config_warnings import ConfigWarning

TITLES = ("CLUSTER", "STATE", "CARRIER", "NODES", "CPU", "MEMORY GiB", "GPU", "TAGS", "RAY", "PYTHON")
_MAX_NAMED = 10
Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of a cluster.", autocompletion=completion.clusters)]
app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)


@app.callback()
def show(context: typer.Context, config: Config = None, output: Output = Format.table, address: Address = None) -> None:
    """Show the clusters; cordon, drain and change them.

    State, carrier, load (used/total), tags and versions of each, refreshed.
    """
    if context.invoked_subcommand is not None:
        if (config, output, address) != (None, Format.table, None):
            raise typer.BadParameter(
                f"write options of {context.invoked_subcommand} behind it; --config is not for it."
            )
        return
    rows = _rows(address, config, refresh=True)
    emit(rows, output, lambda: clusters_overview(rows))


def _rows(address: str | None, config: Path | None, *, refresh: bool) -> list[Mapping[str, Any]]:
    """From the service, if there is one and no file was named; else from a scheduler of our own."""
    if config is None and find_address(address) is not None:
        return list(connect(address).get(api_path("clusters"), refresh=refresh)["clusters"])
    from ray_multicluster_scheduler import UnifiedScheduler

    with UnifiedScheduler(config=config, address=address) as scheduler:
        return list(scheduler.list_clusters(refresh=refresh))


@app.command()
def apply(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A clusters.yaml.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")] = False,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Set the clusters of a running service from a file.

    It then has exactly these. A cluster that is removed, or gets another address, must be empty. The change lasts until
    the next start of the service, which reads its own file.
    """
    body, warnings = _read_clusters(file)
    answer = connect(address).post(with_query(api_path("clusters", "apply"), {"dry_run": dry_run}), body)
    emit_folded(answer, output, lambda: "\n".join(applied_lines(answer, dry_run=dry_run)))
    for one in warnings:
        notify(f"! {one.sentence}; what to do: {one.fix} (more: rmcs explain {one.code})")


def _read_clusters(file: Path) -> tuple[dict[str, Any], list[ConfigWarning]]:
    """The validated file as a request body, with absolute paths; and warnings. Raises ConfigurationError."""
    from ray_multicluster_scheduler.control_plane.config import load_config
    from ray_multicluster_scheduler.control_plane.config.config_warnings import config_warnings
    from ray_multicluster_scheduler.control_plane.config.yaml_text import parse_yaml

    config = load_config(file.absolute())
    body: dict[str, Any] = {"clusters": [_entry(one) for one in config.clusters]}
    settings = parse_yaml(file.read_text(encoding="utf-8"), str(file)).get("settings")
    return {**body, "settings": settings} if settings else body, config_warnings(config.clusters)


def _entry(cluster: ClusterConfig) -> dict[str, Any]:
    entry = cluster.model_dump(mode="json", exclude_unset=True)
    if cluster.auth_token is not None:  # as written: the service resolves ${NAME}
        entry["auth_token"] = cluster.auth_token.get_secret_value()
    return entry


def applied_lines(answer: dict[str, list[str]], *, dry_run: bool) -> Iterator[str]:
    """One line per cluster: the change that was, or would be, made."""
    would = "would be " if dry_run else ""
    for what in ("added", "changed", "removed"):
        yield from (f"{name}: {would}{what}" for name in answer[what])
    yield from (f"{name}: unchanged" for name in answer["unchanged"])
    for name in answer["not_empty"]:
        yield f"{name}: is not empty, so no change would be made; `rmcs clusters drain {name}` first"
    if answer["not_applied"]:
        yield f"settings that differ take effect at the next start: {', '.join(answer['not_applied'])}"


@app.command()
def cordon(name: Name, reason: Reason = "", output: Output = Format.table, address: Address = None) -> None:
    """Send nothing new to a cluster; its items continue."""
    _change(name, "cordon", output, address, {"reason": reason})


@app.command()
def drain(
    name: Name,
    timeout: Timeout = None,
    reason: Reason = "",
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Cordon a cluster, and wait until it is empty.

    Shows what is still there. Ctrl+C ends the wait, and so does --timeout (exit code 101); the cluster stays cordoned.
    Without a service, your programs that run now get the request; repeat it to see what is still there.
    """
    if find_address(address) is None:
        _change(name, "drain", output, address, {"reason": reason})
        return
    service = connect(address)
    answer = service.post(api_path("clusters", name, "drain"), {"timeout": 0, "reason": reason})
    if not answer["drained"]:
        try:
            answer = _wait_until_drained(service, name, answer, timeout)
        except KeyboardInterrupt:
            notify(f"{name} stays cordoned; open it again with `rmcs clusters uncordon {name}`")
            raise typer.Exit(exit_codes.INTERRUPTED) from None
    emit_folded(answer, output, lambda: _outcome(name, "drain", answer))
    if not answer["drained"]:
        raise typer.Exit(exit_codes.NOT_FINISHED)


@app.command()
def uncordon(name: Name, output: Output = Format.table, address: Address = None) -> None:
    """Let new work go to a cluster again."""
    _change(name, "uncordon", output, address)


@app.command("declare-dead")
def declare_dead(
    name: Name,
    reason: Reason = "",
    force: Annotated[
        bool, typer.Option("--force", help="Even if it answers. Drain it too, or it is used again at once.")
    ] = False,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Declare a cluster dead: its items stop waiting for it.

    Items that may be retried go elsewhere, the others fail. Refused for a cluster that answers. Without a service, your
    programs that run now get the request.
    """
    _change(name, "declare-dead", output, address, {"reason": reason, "force": force})


@app.command("list")
def list_clusters(
    refresh: Annotated[
        bool, typer.Option("--refresh/--no-refresh", help="Refresh all first; else the last known state.")
    ] = True,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """List the clusters of a service.

    Without a service, as `rmcs clusters` does.
    """
    rows = _rows(address, None, refresh=refresh)
    emit(rows, output, lambda: clusters_overview(rows))


@app.command("show")
def show_one(
    name: Name,
    refresh: Annotated[
        bool, typer.Option("--refresh/--no-refresh", help="Refresh it first; else show the last known state.")
    ] = True,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Show all details of a cluster."""
    details = connect(address).get(api_path("clusters", name), refresh=refresh)
    emit(details, output, lambda: cluster_facts(details, time.time()))


@app.command()
def check(name: Name, output: Output = Format.table, address: Address = None) -> None:
    """Check now whether a cluster takes work.

    Exit code 0 if it does, 100 if not.
    """
    answer = connect(address).post(api_path("clusters", name, "check"))
    emit_folded(answer, output, lambda: check_verdict(answer))
    if rejection(answer) is not None:
        raise typer.Exit(exit_codes.FAILED)


def rejection(answer: Mapping[str, Any]) -> tuple[str, str] | None:
    """Code and sentence of why a checked cluster takes no work; None: it takes work, if only of some kinds."""
    cluster = answer["cluster"]
    troubles = {one["concerns"]: (str(one["code"]), str(one["sentence"])) for one in cluster["troubles"]}
    if "everything" in troubles:
        return troubles["everything"]
    if not answer["answered"]:
        return "CLUSTER_UNREACHABLE", str(answer["reason"])
    if cluster["cordoned"]:
        because = f" ({cluster['cordon_reason']})" if cluster.get("cordon_reason") else ""
        return "CORDONED", f"{cluster['name']} is cordoned{because}: `rmcs clusters uncordon {cluster['name']}`"
    if cluster["paused"] is not None:
        because = f": {cluster['paused']}" if cluster["paused"] else ""
        return "QUEUE_PAUSED", f"the queue of {cluster['name']} is paused{because}"
    if {"jobs", "tasks and actors"} <= troubles.keys():
        return troubles["tasks and actors"]
    return None


def check_verdict(answer: Mapping[str, Any]) -> str:
    """Whether it takes work, and if not, or not of all kinds, why."""
    cluster, why = answer["cluster"], rejection(answer)
    if why is not None:
        return f"{cluster['name']} takes no work: {why[0]}, {why[1]}"
    except_for = [f"but not {one['concerns']}: {one['code']}, {one['sentence']}" for one in cluster["troubles"]]
    return "\n".join([f"{cluster['name']} takes work", *except_for])


def cluster_facts(details: Mapping[str, Any], now: float) -> Table:
    """The main facts of one cluster; -o json has all."""
    breaker = details["breaker"]
    troubles = [f"{one['concerns']}: {one['code']}, {one['sentence']}" for one in details["troubles"]]
    facts: dict[str, object] = {
        "name": details["name"],
        "state": details["state"],
        "why": details["sentence"],
        "cordoned": _cordon_state(details),
        "paused": None if details["paused"] is None else details["paused"] or "yes",
        "troubles": "\n".join(troubles) if len(troubles) > 1 else None,
        "notes": "\n".join(details.get("notes", ())),
        "breaker": None
        if breaker["state"] == "CLOSED"
        else f"{breaker['state']} after {breaker['failures_in_a_row']} failures in a row, tried again "
        + ago(breaker["half_open_at"], now),
        "dashboard": details["dashboard"],
        "head": details["head_address"],
        "carrier": details["carrier"],
        "tasks by": details["tasks_by"],
        "link": details["link"],
        "nodes": details["nodes"],
        "CPU": load_with_age(details, "CPU", 1.0, now),
        "memory GiB": load_with_age(details, "memory", GIB, now),
        "GPU": load_with_age(details, "GPU", 1.0, now),
        "items": f"{details['in_flight']} there, {details['ahead']} prefetched",
        "jobs": details["running_jobs"],
        "actors": details["ready_actors"],
        "reserved for": details["kept_for"],
        "tags": ", ".join(details["tags"]),
        "Ray": details["ray_version"],
        "Python": details["python_version"],
        "system": " ".join(filter(None, (details["os"], details["arch"]))),
        "last seen": ago(details["snapshot_at"], now),
    }
    return facts_table(facts)


def _cordon_state(details: Mapping[str, Any]) -> str | None:
    if not details["cordoned"]:
        return None
    reason = details.get("cordon_reason")
    return ("yes, and empty" if details["drained"] else "yes, and not empty yet") + (f": {reason}" if reason else "")


def clusters_overview(rows: Sequence[Mapping[str, Any]]) -> Group:
    """The table, then paused queues and problems."""
    from rich.console import Group
    from rich.text import Text

    notes = (
        _named(row, one)
        for row in rows
        for one in (cordon_text(row), pause_text(row), str(row.get("sentence") or ""))
        if one
    )
    return Group(fleet_table(rows), *(Text(escaped(one)) for one in notes))


def _named(row: Mapping[str, Any], text: str) -> str:
    """The text, with the name of the cluster if that is not in it."""
    name = str(row["name"])
    return text if text.startswith((f"{name} ", f"{name}:")) else f"{name}: {text}"


def fleet_table(rows: Sequence[Mapping[str, Any]]) -> FittingTable:
    """One row per cluster. Unknown values are shown as such, never as zero."""
    return FittingTable(
        TITLES,
        [_cells(row) for row in rows],
        cut=("TAGS",),
        drop=("PYTHON", "RAY", "CARRIER", "NODES", "TAGS", "GPU", "MEMORY GiB"),
    )


def _cells(row: Mapping[str, Any]) -> tuple[object, ...]:
    return (
        row["name"],
        UNKNOWN if row.get("state") is None else cluster_state_cell(row),
        _known(row.get("carrier")),
        nodes(row),
        load(row, "CPU"),
        load(row, "memory", GIB),
        load(row, "GPU"),
        ",".join(row.get("tags") or ()) or UNKNOWN,
        _known(row.get("ray_version")),
        _known(row.get("python_version")),
    )


def _known(value: object) -> str:
    return UNKNOWN if value is None else str(value)


def _change(name: str, verb: str, output: Format, address: str | None, body: dict[str, Any] | None = None) -> None:
    """Send the request to the service, or to the running programs; print what changed, and the items there."""
    if find_address(address) is not None:
        service = connect(address)
        send = service.post if verb == "declare-dead" else service.change  # that answer has no "changed"
        answer = send(api_path("clusters", name, verb), body)
        emit_folded(answer, output, lambda: _outcome(name, verb, answer))
        return
    known = {"cordon": "drain"}.get(verb, verb)  # a program does not wait when it drains
    _change_programs(name, verb, {known.replace("-", "_"): name, **(body or {})}, output)


def _change_programs(name: str, verb: str, query: Mapping[str, Any], output: Format) -> None:
    """Send it to all programs and print what each did. Raises SchedulerError if one refused or did not answer,
    NotFoundError if no program has such a cluster, ConfigurationError if there is no program."""
    from ray_multicluster_scheduler.cli.service.local_programs import query_all
    from ray_multicluster_scheduler.control_plane.config.home import run_folder

    programs: list[dict[str, Any]] = []
    unknown, refused, steps = [], [], []
    for pid, answer in query_all(query):
        if "items" in answer:
            one = {"process": pid, "command": answer["program"]["command"], "items": list(answer["items"])}
            programs.append({**one, "changed": bool(answer.get("changed", True))})
        elif answer.get("error") == "ConfigurationError":
            unknown.append(f"process {pid}: {answer.get('message')}")
        else:
            refused.append(f"process {pid}: {answer.get('message') or 'no answer'}")
            steps.append(str(answer.get("next_step") or ""))
    if programs:
        lines = [f"process {one['process']} ({one['command']}): {_outcome(name, verb, one)}" for one in programs]
        emit_folded({"programs": programs}, output, lambda: "\n".join(lines))
    if refused:
        raise SchedulerError("\n".join(refused), cluster=name, next_step=next(filter(None, steps), ""))
    if programs:
        return
    if unknown:
        step = "use the name of a cluster of theirs"
        raise exit_codes.NotFoundError("\n".join(unknown), cluster=name, next_step=step)
    raise ConfigurationError(
        f"No program of yours with a scheduler runs now (there is none in {run_folder()}), so nothing has to be done.",
        cluster=name,
        next_step="repeat it while the program runs that has work there, and with the same RMCS_HOME",
    )


def _wait_until_drained(service: Service, name: str, answer: dict[str, Any], timeout: float | None) -> dict[str, Any]:
    """The state when it is empty, or the time is over. Raises SchedulerError if it is uncordoned before."""
    deadline = Deadline(timeout)
    with ProgressLine() as progress:
        while not deadline.over:
            progress.show(_outcome(name, "drain", answer))
            time.sleep(deadline.at_most(POLL_S))
            drained = retry_while_away(lambda: service.get(api_path("clusters", name, "drained")))["drained"]
            if drained is None:
                raise SchedulerError(
                    f"Cluster {name!r} was not drained: it was opened for new work again.",
                    cluster=name,
                    next_step="drain it again, if nothing should go there",
                )
            # The last item may end between the two requests; the next poll then finds the cluster drained.
            answer = {"drained": drained, "items": [] if drained else _items_on(service, name) or answer["items"]}
            if drained:
                break
    return answer


def _items_on(service: Service, name: str) -> list[str]:
    states = ",".join(UNFINISHED)
    rows = retry_while_away(lambda: service.rows(api_path("items"), "items", 1000, cluster=name, state=states))
    return [str(row["id"]) for row in rows]


class _ChangeTexts(NamedTuple):
    """Describes the result of a change; the last four describe the items that are, or were, on the cluster."""

    changed: str
    unchanged: str
    one: str
    many: str
    items: str
    no_items: str


_CORDON = _ChangeTexts(
    "takes no new work", "is cordoned already", "is", "are", "still there", "nothing is there any more"
)
_OUTCOMES = {
    "cordon": _CORDON,
    "drain": _CORDON,
    "uncordon": _ChangeTexts("is not cordoned any more", "was not cordoned", "is", "are", "there", "nothing is there"),
    "declare-dead": _ChangeTexts(
        "is declared dead", "", "was", "were", "there (see `rmcs explain ID`)", "nothing was there"
    ),
}


def _outcome(name: str, verb: str, answer: Mapping[str, Any]) -> str:
    """Reports the change, and the first of the items on the cluster."""
    words, items = _OUTCOMES[verb], answer["items"]
    text = f"{name} {words.changed if answer.get('changed', True) else words.unchanged}"
    if not items:
        return f"{text}; {words.no_items}"
    more = f" and {len(items) - _MAX_NAMED} more" if len(items) > _MAX_NAMED else ""
    verb_form = words.one if len(items) == 1 else words.many
    return f"{text}; {', '.join(items[:_MAX_NAMED])}{more} {verb_form} {words.items}"
