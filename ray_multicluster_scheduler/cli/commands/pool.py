"""`rmcs pool`: the pools of a service: quota, use, and their definition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ray_multicluster_scheduler.cli.arguments import completion
from ray_multicluster_scheduler.cli.layout.output import Format, Output, emit, emit_list, facts_table, notify
from ray_multicluster_scheduler.cli.layout.table import FittingTable
from ray_multicluster_scheduler.cli.service.client import Address, api_path, connect
from ray_multicluster_scheduler.common.model.resources import describe

if TYPE_CHECKING:
    from rich.console import Group

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Share the fleet by pools with a quota.")
BAR_WIDTH = 10
TITLES = ("POOL", "COHORT", "CLUSTER", "RESOURCE", "QUOTA", "USED", "", "BORROWED", "LENT", "RUNNING", "WAITING")
_Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of a pool.", autocompletion=completion.pools)]
_AMOUNTS_HELP = "As RESOURCE=AMOUNT; may be repeated."
_Quota = Annotated[
    list[str] | None, typer.Option("--quota", help="A quota in the whole fleet, as RESOURCE=AMOUNT; may be repeated.")
]
_ClusterQuota = Annotated[
    list[str] | None,
    typer.Option("--cluster-quota", help="Instead, one on a cluster, as CLUSTER:RESOURCE=AMOUNT; may be repeated."),
]


@app.command("list")
def list_pools(output: Output = Format.table, address: Address = None) -> None:
    """List the pools, with quota, use, borrowed and lent amounts.

    In the bars, # is used, + is borrowed from others, and - is lent to others.
    """
    rows = connect(address).get(api_path("pools"))["pools"]
    emit_list(rows, output, pools_table, "there are no pools")


@app.command()
def show(name: _Name, output: Output = Format.table, address: Address = None) -> None:
    """Show the definition and the use of a pool."""
    row = connect(address).get(api_path("pools", name))
    emit(row, output, lambda: pool_overview(row))


@app.command()
def create(
    name: _Name,
    quota: _Quota = None,
    cluster_quota: _ClusterQuota = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", help="Items with all its labels get it: KEY=VALUE; may be repeated.")
    ] = None,
    cohort: Annotated[str | None, typer.Option("--cohort", help="Its pools lend each other unused quota.")] = None,
    borrow_limit: Annotated[
        list[str] | None, typer.Option("--borrow-limit", help=f"It borrows no more. {_AMOUNTS_HELP}")
    ] = None,
    lend_limit: Annotated[
        list[str] | None, typer.Option("--lend-limit", help=f"It lends no more. {_AMOUNTS_HELP}")
    ] = None,
    protected: Annotated[bool, typer.Option("--protected", help="Its items are never preempted.")] = False,
    reclaim: Annotated[
        Literal["never", "lower_priority", "any"],
        typer.Option("--reclaim", help="Whose items may be stopped to get back what it lent."),
    ] = "never",
    priority: Annotated[float, typer.Option("--priority", help="The priority of items that have priority 0.")] = 0,
    preemptible: Annotated[
        bool, typer.Option("--preemptible", help="Its items may be preempted, unless they say so themselves.")
    ] = False,
    owner: Annotated[list[str] | None, typer.Option("--owner", help="Only these may use it; may be repeated.")] = None,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Create a pool, or replace the one of this name.

    It takes effect at once and survives restarts of the service. Running items are not affected.
    """
    values = {
        "quota": amounts_of("--quota", quota),
        "cluster_quota": _by_cluster(cluster_quota),
        "labels": _pairs("--label", label, "KEY=VALUE"),
        "cohort": cohort,
        "borrow_limit": amounts_of("--borrow-limit", borrow_limit),
        "lend_limit": amounts_of("--lend-limit", lend_limit),
        "protected": protected,
        "reclaim": reclaim,
        "priority": priority,
        "preemptible": preemptible,
        "owners": owner or [],
    }
    row = connect(address).put(api_path("pools", name), values)
    emit(row, output, lambda: pool_overview(row))


@app.command()
def resize(
    name: _Name,
    quota: _Quota = None,
    cluster_quota: _ClusterQuota = None,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Change the quota of a pool.

    Resources that are not named keep theirs; `GPU=none` removes one, which is then unlimited. Running items continue,
    even above a lower quota; nothing more starts until their use has fallen.
    """
    new, on_clusters = amounts_of("--quota", quota), _by_cluster(cluster_quota)
    if bool(new) == bool(on_clusters):
        raise typer.BadParameter("Name amounts, such as --quota CPU=8; or --cluster-quota lab:CPU=4, not both.")
    service = connect(address)
    before = service.get(api_path("pools", name))
    if new:
        values: dict[str, Any] = {"quota": _merged(before["quota"], new)}
    else:
        known = before["cluster_quota"]
        merged = {one: _merged(known.get(one, {}), on_clusters.get(one, {})) for one in {**known, **on_clusters}}
        values = {"cluster_quota": merged}
    row = service.patch(api_path("pools", name), values)
    emit(row, output, lambda: pool_overview(row))


@app.command()
def relabel(
    name: _Name,
    labels: Annotated[list[str], typer.Argument(metavar="LABEL...", help="KEY=VALUE sets one, KEY- removes one.")],
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Change the labels of a pool.

    Items that were submitted before stay in their pools.
    """
    removed = {one.removesuffix("-") for one in labels if "=" not in one and one.endswith("-")}
    added = _pairs("LABEL", [one for one in labels if "=" in one or not one.endswith("-")], "KEY=VALUE or KEY-")
    service = connect(address)
    before = service.get(api_path("pools", name))["labels"]
    kept = {key: value for key, value in before.items() if key not in removed}
    row = service.patch(api_path("pools", name), {"labels": {**kept, **added}})
    emit(row, output, lambda: pool_overview(row))


@app.command()
def delete(
    name: _Name,
    drain: Annotated[
        bool, typer.Option("--drain", help="Accept nothing new, and delete it when its items have ended.")
    ] = False,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Delete a pool.

    One with unfinished items is refused, unless it is drained.
    """
    done = connect(address).delete(api_path("pools", name), drain=drain)
    if not done["deleted"]:
        count = done["unfinished"]
        notify(f"{name} is deleted when its {count} unfinished item{' has' if count == 1 else 's have'} ended")
    emit(done, output, lambda: name)


@app.command()
def apply(
    file: Annotated[Path, typer.Option("-f", "--file", help="A YAML file with `pools:`, such as a clusters.yaml.")],
    prune: Annotated[
        bool, typer.Option("--prune", help="Delete the pools that are not in the file; those in use drain.")
    ] = False,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Create and change all pools of a file.

    Other pools stay as they are.
    """
    from ray_multicluster_scheduler.control_plane.config.yaml_text import parse_yaml, read_text

    data = parse_yaml(read_text(file, "give the path of a YAML file with pools"), str(file))
    pools = data.get("pools") if isinstance(data, dict) else None
    if not isinstance(pools, list):
        raise typer.BadParameter(f"{file} has no list `pools:`.", param_hint="--file")
    done = connect(address).put(api_path("pools"), {"pools": pools, "prune": prune})
    emit(done, output, lambda: facts_table({key: ", ".join(names) or "none" for key, names in done.items()}))


def amounts_of(option: str, given: Iterable[str] | None) -> dict[str, float | str | None]:
    """``CPU=8`` as a number, ``memory=64GiB`` as text, ``GPU=none`` as None. Raises BadParameter."""
    return {key: _amount(value) for key, value in _pairs(option, given, "RESOURCE=AMOUNT").items()}


def _amount(text: str) -> float | str | None:
    if text == "none":
        return None
    try:
        return float(text)
    except ValueError:
        return text  # with a unit; the service checks it


def _by_cluster(given: Iterable[str] | None) -> dict[str, dict[str, float | str | None]]:
    found: dict[str, dict[str, float | str | None]] = {}
    for key, amount in amounts_of("--cluster-quota", given).items():
        cluster, colon, resource = key.partition(":")
        if not (cluster and colon and resource):
            raise typer.BadParameter(f"{key!r} is not CLUSTER:RESOURCE.", param_hint="--cluster-quota")
        found.setdefault(cluster, {})[resource] = amount
    return found


def _pairs(option: str, given: Iterable[str] | None, form: str) -> dict[str, str]:
    found = {}
    for one in given or ():
        key, equals, value = one.partition("=")
        if not (key and equals and value):
            raise typer.BadParameter(f"{one!r} is not {form}.", param_hint=option)
        found[key] = value
    return found


def _merged(before: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    return {key: amount for key, amount in {**before, **new}.items() if amount is not None}


def pools_table(rows: Sequence[dict[str, Any]]) -> FittingTable:
    """Rows of ``/api/v1/pools``; one line for each resource."""
    cells = []
    for row in rows:
        first = (row["name"] + (" (draining)" if row["draining"] else ""), row["cohort"] or "–")
        counts = (str(row["running"]), str(row["waiting"]))
        lines = [_use_cells(one) for one in row["use"]] or [("–", "–", "–", "–", "", "–", "–")]
        cells += [
            (*(first if at == 0 else ("", "")), *one, *(counts if at == 0 else ("", "")))
            for at, one in enumerate(lines)
        ]
    return FittingTable(TITLES, cells, cut=("COHORT",), drop=("COHORT", "LENT", "BORROWED", "CLUSTER"))


def _use_cells(use: Mapping[str, Any]) -> tuple[str, ...]:
    taken = use["used"] + use["reserved"]
    amounts = [_phrase(use["resource"], amount) for amount in (use["quota"], taken, use["borrowed"], use["lent"])]
    return use["cluster"] or "all", use["resource"], *amounts[:2], bar(use), *amounts[2:]


def _phrase(resource: str, amount: float) -> str:
    return describe({resource: amount}).removesuffix(f" {resource}")


def bar(use: Mapping[str, Any]) -> str:
    """``[####--    ]``: of its quota, the used (#) and the lent part (-); behind it what is borrowed (+)."""
    quota = use["quota"]
    if not quota:
        return f"[{' ' * BAR_WIDTH}]{'+' if use['borrowed'] else ''}"
    own = min(use["used"] + use["reserved"], quota)
    used = round(BAR_WIDTH * own / quota)
    lent = min(round(BAR_WIDTH * use["lent"] / quota), BAR_WIDTH - used)
    more = min(round(BAR_WIDTH * use["borrowed"] / quota), BAR_WIDTH)
    return f"[{'#' * used}{'-' * lent}{' ' * (BAR_WIDTH - used - lent)}]{'+' * more}"


def pool_overview(row: Mapping[str, Any]) -> Group:
    """The use of a pool, and below it its rules."""
    from rich.console import Group

    limits = {key: describe(row[key]) for key in ("borrow_limit", "lend_limit") if row[key]}
    facts = {
        "source": row["source"],
        "cohort": row["cohort"],
        "labels": ", ".join(f"{key}={value}" for key, value in row["labels"].items()),
        **limits,
        "reclaim": row["reclaim"],
        "protected": "yes" if row["protected"] else "no",
        "priority": f"{row['priority']:g}",
        "preemptible": "yes" if row["preemptible"] else "no",
        "owners": ", ".join(row["owners"]) or "everybody",
    }
    return Group(pools_table([dict(row)]), facts_table(facts))
