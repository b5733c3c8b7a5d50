"""`rmcs simulate`: what a fleet would do with a workload, in virtual time; nothing is contacted."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ray_multicluster_scheduler.cli.options import WHICH_CONFIG
from ray_multicluster_scheduler.cli.output import Format, Output, emit, plain_table, say

if TYPE_CHECKING:
    from ray_multicluster_scheduler.simulation import Comparison, SimulatedFleet, Workload


def simulate(
    clusters: Annotated[
        Path | None,
        typer.Option(
            "--config", "--clusters", help=f"{WHICH_CONFIG} If there is none, --nodes and --fleet name the clusters."
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
        str | None, typer.Option("--synthetic", help='Or made up: "items=1000 over=2h run=lognormal:60,1".')
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
    seed: Annotated[int, typer.Option("--seed", help="The same seed is the same run.")] = 0,
    plot: Annotated[Path | None, typer.Option("--plot", help="Write use and queue over time as an HTML file.")] = None,
    save_trace: Annotated[Path | None, typer.Option("--save-trace", help="Write the workload as a CSV file.")] = None,
    record: Annotated[
        Path | None, typer.Option("--record", help="Write the history of the run as JSON lines (large).")
    ] = None,
    output: Output = Format.table,
) -> None:
    """Run a workload on a simulated fleet.

    It is scheduled by what schedules in production; nothing is contacted, and what came of it is printed.
    """
    from ray_multicluster_scheduler.cli import simulate_variants as variants

    _check(trace, synthetic, compare, record, plot)
    base = variants.Variant.of("", policy or [], set_ or [], nodes or [], fleet)
    runs = [base.with_words(text) for text in compare or []] or [base]
    fleets = {one.label: one.build(clusters) for one in runs}
    if len(fleets) < len(runs):
        raise typer.BadParameter('two of --compare have the same name; give each its own: "NAME: ...".')
    workload = _workload(trace, synthetic, seed, next(iter(fleets.values())))
    if save_trace is not None:
        from ray_multicluster_scheduler.simulation import write_trace

        variants.write(save_trace, lambda path: write_trace(path, workload))
    comparison = _run(fleets, workload, seed, record)
    if plot is not None:
        from ray_multicluster_scheduler.simulation import plot as draw

        text = draw(comparison, title=f"Simulation of {len(workload):,} items, seed {seed}")
        variants.write(plot, lambda path: path.write_text(text, encoding="utf-8"))
        say(f"wrote {plot}")
    _print(comparison, output, several=bool(compare))


def _check(
    trace: Path | None, synthetic: str | None, compare: list[str] | None, record: Path | None, plot: Path | None
) -> None:
    if (trace is None) == (synthetic is None):
        raise typer.BadParameter("give either --trace or --synthetic: one of them says what is submitted.")
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
    from ray_multicluster_scheduler.cli import simulate_variants as variants
    from ray_multicluster_scheduler.simulation import Comparison, simulate

    results = {}
    for label, fleet in fleets.items():
        began = time.process_time()
        if record is None:
            results[label] = simulate(fleet, workload, seed=seed)
        else:
            results[label] = variants.simulate_and_record(fleet, workload, seed, record)
        took, span = time.process_time() - began, results[label].makespan_s
        name = f"{label}: " if label else ""
        say(f"{name}{len(workload):,} items, {span / 3600:.1f} h, simulated in {took:.1f} s")
    return Comparison(results)


def _print(comparison: Comparison, output: Format, *, several: bool) -> None:
    from ray_multicluster_scheduler.simulation.words import rows

    only = next(iter(comparison.results.values()))
    titles = ["FIGURE", *(comparison.results if several else ("VALUE",))]
    told = comparison.to_dict() if several else only.to_dict()
    emit(told, output, lambda: plain_table(titles, rows(comparison.results)))
