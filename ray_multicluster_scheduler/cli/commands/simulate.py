"""`rmcs simulate`: run a workload on a simulated fleet in virtual time; contacts nothing."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ray_multicluster_scheduler.cli.arguments.options import CONFIG_HELP, ReplaceFiles
from ray_multicluster_scheduler.cli.layout.output import Format, Output, emit, notify, plain_table
from ray_multicluster_scheduler.cli.output_files import check_new, write_file

if TYPE_CHECKING:
    from rich.table import Table

    from ray_multicluster_scheduler.simulation import Comparison, SimulatedFleet, Workload


def simulate(
    clusters: Annotated[
        Path | None,
        typer.Option(
            "--config", "--clusters", help=f"{CONFIG_HELP} Without one, --nodes and --fleet name the clusters."
        ),
    ] = None,
    fleet: Annotated[
        Path | None, typer.Option("--fleet", help="A file with sizes, speeds and faults (docs/simulation.md).")
    ] = None,
    nodes: Annotated[
        list[str] | None, typer.Option("--nodes", help="NAME=4x{CPU:16,GPU:2}@1.5 (@ is speed); may be repeated.")
    ] = None,
    trace: Annotated[Path | None, typer.Option("--trace", help="The workload, as a CSV file.")] = None,
    synthetic: Annotated[
        str | None, typer.Option("--synthetic", help='Or a synthetic one: "items=1000 over=2h run=lognormal:60,1".')
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", help="SCORE=WEIGHT instead of settings.weights, or round_robin; may be repeated."),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE of the settings, value as YAML; may be repeated.")
    ] = None,
    compare: Annotated[
        list[str] | None,
        typer.Option(
            "--compare", help='"NAME: policy:headroom=1 set:KEY=VALUE nodes:a=8x{CPU:4} fleet:PATH"; may be repeated.'
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same run.")] = 0,
    plot: Annotated[Path | None, typer.Option("--plot", help="Write use and queue over time as an HTML file.")] = None,
    save_trace: Annotated[Path | None, typer.Option("--save-trace", help="Write the workload as a CSV file.")] = None,
    record: Annotated[
        Path | None, typer.Option("--record", help="Write the history of the run as JSON lines (large).")
    ] = None,
    force: ReplaceFiles = False,
    output: Output = Format.table,
) -> None:
    """Run a workload on a simulated fleet.

    The scheduler is that of production; nothing is contacted, and the metrics of the run are printed.
    """
    from ray_multicluster_scheduler.cli.commands import simulation_variants as variants

    _check_options(trace, synthetic, compare, record, plot)
    for file in filter(None, (save_trace, record, plot)):
        check_new(file, force=force)
    base = variants.Variant.parse("", policy or [], set_ or [], nodes or [], fleet)
    runs = [base.compared(text) for text in compare or []] or [base]
    fleets = {one.label: one.build(clusters) for one in runs}
    if len(fleets) < len(runs):
        raise typer.BadParameter('two of --compare have the same name; give each its own: "NAME: ...".')
    workload = _workload(trace, synthetic, seed, next(iter(fleets.values())))
    if save_trace is not None:
        from ray_multicluster_scheduler.simulation import write_trace

        write_file(save_trace, lambda path: write_trace(path, workload))
        notify(f"wrote {save_trace}")
    comparison = _run(fleets, workload, seed, record)
    if record is not None:
        notify(f"wrote {record}; `rmcs replay {record}` replays it")
    if plot is not None:
        from ray_multicluster_scheduler.simulation import plot as draw

        text = draw(comparison, title=f"Simulation of {_count(workload)}, seed {seed}")
        write_file(plot, lambda path: path.write_text(text, encoding="utf-8"))
        notify(f"wrote {plot}")
    _print(comparison, output, several=bool(compare))


def _check_options(
    trace: Path | None, synthetic: str | None, compare: list[str] | None, record: Path | None, plot: Path | None
) -> None:
    if (trace is None) == (synthetic is None):
        raise typer.BadParameter("give either --trace or --synthetic: the workload.")
    if compare and record is not None:
        raise typer.BadParameter("--record writes the history of one run; leave --compare out.")
    if plot is not None and not plot.absolute().parent.is_dir():
        raise typer.BadParameter(f"--plot: there is no folder {plot.absolute().parent}.")


def _workload(trace: Path | None, synthetic: str | None, seed: int, fleet: SimulatedFleet) -> Workload:
    from ray_multicluster_scheduler.simulation import Synthetic, read_trace

    if trace is not None:
        return read_trace(trace)
    return Synthetic.parse(synthetic or "").generate(seed, fleet)


def _run(fleets: dict[str, SimulatedFleet], workload: Workload, seed: int, record: Path | None) -> Comparison:
    from ray_multicluster_scheduler.cli.commands import simulation_variants as variants
    from ray_multicluster_scheduler.simulation import Comparison, simulate
    from ray_multicluster_scheduler.simulation.report.report_text import format_duration

    results = {}
    for label, fleet in fleets.items():
        began = time.process_time()
        if record is None:
            results[label] = simulate(fleet, workload, seed=seed)
        else:
            results[label] = variants.simulate_and_record(fleet, workload, seed, record)
        took, span = time.process_time() - began, results[label].makespan_s
        name = f"{label}: " if label else ""
        notify(f"{name}{_count(workload)}, {format_duration(span)}, simulated in {took:.1f} s")
    return Comparison(results)


def _count(workload: Workload) -> str:
    return f"{len(workload):,} item{'' if len(workload) == 1 else 's'}"


def _print(comparison: Comparison, output: Format, *, several: bool) -> None:
    only = next(iter(comparison.results.values()))
    emit(
        comparison.to_dict() if several else only.to_dict(), output, lambda: metrics_table(comparison, several=several)
    )


def metrics_table(comparison: Comparison, *, several: bool) -> Table:
    """A line for each metric, and a column for each run."""
    from ray_multicluster_scheduler.simulation.report.report_text import rows

    titles = ["FIGURE", *(comparison.results if several else ("VALUE",))]
    return plain_table(titles, rows(comparison.results))
