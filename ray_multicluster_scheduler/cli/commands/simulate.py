"""`rmcs trace`, `rmcs simulate`, `rmcs replay`: record a workload, run it on a simulated fleet, check a recorded run.

A trace is what a service has run, as a CSV file. A simulation runs in virtual time and contacts nothing.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ray_multicluster_scheduler.cli import exit_codes
from ray_multicluster_scheduler.cli.arguments.options import CONFIG_HELP, ReplaceFiles
from ray_multicluster_scheduler.cli.layout.output import (
    Format,
    Output,
    emit,
    emit_folded,
    notify,
    plain_table,
    print_folded,
)
from ray_multicluster_scheduler.cli.output_files import check_new, write_file
from ray_multicluster_scheduler.cli.service.client import Address, api_path, connect
from ray_multicluster_scheduler.common.exception import ConfigurationError

if TYPE_CHECKING:
    from rich.table import Table

    from ray_multicluster_scheduler.simulation import Comparison, SimulatedFleet, Workload
    from ray_multicluster_scheduler.simulation.history import HistoryLine
    from ray_multicluster_scheduler.simulation.replay import Replayed
_NEXT = "rmcs simulate --trace {} --nodes 'NAME=4x{{CPU:16}}'"
_QUIET = ("Publish", "SetTimer", "ClearTimer", "RefreshSnapshot", "CheckDashboard", "Continue")
_MAX_LINE = 240


def trace(
    out: Annotated[Path, typer.Argument(metavar="FILE", help="The CSV file to write.")],
    force: ReplaceFiles = False,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Write what a service has run to a trace, a CSV file.

    `rmcs simulate --trace` shows whether another fleet, or another policy, would have done better.
    """
    check_new(out, force=force)
    csv = connect(address, answer_s=600.0).fetch(api_path("trace"))
    write_file(out, lambda draft: draft.write_bytes(csv))
    items = max(0, len(csv.splitlines()) - 1)
    if items:
        count = f"{items} item{'' if items == 1 else 's'}"
        notify(f"{count} in {out}; simulate another fleet with: {_NEXT.format(shlex.quote(str(out)))}")
    else:
        notify(f"{out} contains no item: nothing has run yet, or all of it was deleted")
    emit({"file": str(out), "items": items}, output, lambda: str(out))


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
    from ray_multicluster_scheduler.simulation import Synthetic, read_trace, write_trace
    from ray_multicluster_scheduler.simulation import plot as draw

    if (trace is None) == (synthetic is None):
        raise typer.BadParameter("give either --trace or --synthetic: the workload.")
    if compare and record is not None:
        raise typer.BadParameter("--record writes the history of one run; leave --compare out.")
    if plot is not None and not plot.absolute().parent.is_dir():
        raise typer.BadParameter(f"--plot: there is no folder {plot.absolute().parent}.")
    for file in filter(None, (save_trace, record, plot)):
        check_new(file, force=force)
    base = variants.Variant.parse("", policy or [], set_ or [], nodes or [], fleet)
    runs = [base.compared(text) for text in compare or []] or [base]
    fleets = {one.label: one.build(clusters) for one in runs}
    if len(fleets) < len(runs):
        raise typer.BadParameter('two of --compare have the same name; give each its own: "NAME: ...".')
    if trace is not None:
        workload = read_trace(trace)
    else:
        workload = Synthetic.parse(synthetic or "").generate(seed, next(iter(fleets.values())))
    if save_trace is not None:
        write_file(save_trace, lambda path: write_trace(path, workload))
        notify(f"wrote {save_trace}")
    comparison = _run(fleets, workload, seed, record)
    if record is not None:
        notify(f"wrote {record}; `rmcs replay {record}` replays it")
    if plot is not None:
        text = draw(comparison, title=f"Simulation of {_count(workload)}, seed {seed}")
        write_file(plot, lambda path: path.write_text(text, encoding="utf-8"))
        notify(f"wrote {plot}")
    several = bool(compare)
    shown = comparison if several else next(iter(comparison.results.values()))
    emit(shown.to_dict(), output, lambda: metrics_table(comparison, several=several))


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


def metrics_table(comparison: Comparison, *, several: bool) -> Table:
    """A line for each metric, and a column for each run."""
    from ray_multicluster_scheduler.simulation.report.report_text import rows

    titles = ["FIGURE", *(comparison.results if several else ("VALUE",))]
    return plain_table(titles, rows(comparison.results))


def replay(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="A file of `make sim-test` or `rmcs simulate --record`.", dir_okay=False),
    ],
    everything: Annotated[bool, typer.Option("--all", help="Also timers, requests and published events.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Only the violations.")] = False,
    output: Output = Format.table,
) -> None:
    """Replay a recorded run through the scheduler.

    Prints its instructions, and which guarantees are violated. Exit code 100 if one is.
    """
    from ray_multicluster_scheduler.simulation.checker import judge
    from ray_multicluster_scheduler.simulation.history import EventHandled, read_history
    from ray_multicluster_scheduler.simulation.replay import replay as feed

    try:
        recorded = list(read_history(file))
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {error.strerror}.", next_step="give a file") from None
    done = feed(recorded)
    if not quiet and output is Format.table:
        for text in lines_of(done, everything=everything):
            print_folded(text)
    violations = judge(done.history) if done.error is None else []
    fed = sum(isinstance(line, EventHandled) for line in done.history)
    report = {
        "events": fed,
        "differs_at": done.differs_at,
        "violations": [str(one) for one in violations],
        "error": None if done.error is None else repr(done.error),
    }
    emit_folded(report, output, lambda: "\n".join([*map(str, violations), summary(done, fed, len(violations))]))
    if violations or done.error is not None:
        raise typer.Exit(exit_codes.FAILED)


def lines_of(done: Replayed, *, everything: bool) -> Iterator[str]:
    """Number, virtual time and text of each line that is shown."""
    for number, line in enumerate(done.history):
        text = line_text(line, everything=everything)
        if text:
            yield f"{number:>6} {line.at:>12.3f} {text}"


def line_text(line: HistoryLine, *, everything: bool) -> str:
    """One line; empty if it is not shown."""
    from ray_multicluster_scheduler.simulation.history import EventHandled, InstructionIssued

    if isinstance(line, EventHandled):
        return f"← {line.event}"[:_MAX_LINE]
    if not isinstance(line, InstructionIssued):
        return f"  · {line}"[:_MAX_LINE]
    name = type(line.instruction).__name__
    if name in _QUIET and not everything:
        return ""
    step = getattr(line.instruction, "transition", None)
    if step is None:
        return f"    → {line.instruction}"[:_MAX_LINE]
    where = f" on {step.cluster}" if step.cluster else ""
    return f"    → {step.task_id} {step.state} (attempt {step.attempt}{where}): {step.code}, {step.sentence}"[
        :_MAX_LINE
    ]


def summary(done: Replayed, fed: int, violations: int) -> str:
    """The result in one line."""
    answers = "as recorded" if done.differs_at is None else f"not as recorded, from line {done.differs_at} on"
    judged = (
        f"{violations} violation{'' if violations == 1 else 's'}" if done.error is None else f"it raised {done.error!r}"
    )
    return f"{fed} event{'' if fed == 1 else 's'}; answers {answers}; {judged}"
