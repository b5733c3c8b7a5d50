"""`rmcs replay`: replay a recorded run event by event, and check its guarantees."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ray_multicluster_scheduler.cli import exit_codes
from ray_multicluster_scheduler.cli.layout.output import Format, Output, emit_folded, print_folded
from ray_multicluster_scheduler.common.exception import ConfigurationError

if TYPE_CHECKING:
    from ray_multicluster_scheduler.simulation.history import HistoryLine
    from ray_multicluster_scheduler.simulation.replay import Replayed

_QUIET = ("Publish", "SetTimer", "ClearTimer", "RefreshSnapshot", "CheckDashboard", "Continue")
_MAX_LINE = 240


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
