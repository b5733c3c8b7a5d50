"""`rmcs replay`: a recorded run once more, event by event, and what the judges say of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ray_multicluster_scheduler.cli import exit_codes
from ray_multicluster_scheduler.cli.layout.output import Format, Output, emit_words, show_fitting

if TYPE_CHECKING:
    from ray_multicluster_scheduler.simulation.history import HistoryLine
    from ray_multicluster_scheduler.simulation.replay import Replayed

_QUIET = ("Publish", "SetTimer", "ClearTimer", "RefreshSnapshot", "CheckDashboard", "Continue")
_MOST = 240


def replay(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="What `make sim-test` or `rmcs simulate --record` wrote.", dir_okay=False),
    ],
    everything: Annotated[bool, typer.Option("--all", help="Also timers, questions and what is published.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Only what the judges say.")] = False,
    output: Output = Format.table,
) -> None:
    """Feed a recorded run to the scheduler's brain.

    Prints what it answers, and which guarantees do not hold. Exit code 100 if one of them does not.
    """
    from ray_multicluster_scheduler.common.exception import ConfigurationError
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
            show_fitting(text)
    violations = judge(done.history) if done.error is None else []
    fed = sum(isinstance(line, EventHandled) for line in done.history)
    told = {
        "events": fed,
        "differs_at": done.differs_at,
        "violations": [str(one) for one in violations],
        "error": None if done.error is None else repr(done.error),
    }
    emit_words(told, output, lambda: "\n".join([*map(str, violations), summary(done, fed, len(violations))]))
    if violations or done.error is not None:
        raise typer.Exit(exit_codes.FAILED)


def lines_of(done: Replayed, *, everything: bool) -> Iterator[str]:
    """Number, virtual time and words of each line that people want to see."""
    for number, line in enumerate(done.history):
        text = line_text(line, everything=everything)
        if text:
            yield f"{number:>6} {line.at:>12.3f} {text}"


def line_text(line: HistoryLine, *, everything: bool) -> str:
    """One line for people; empty for what they need not see."""
    from ray_multicluster_scheduler.simulation.history import EventHandled, InstructionIssued

    if isinstance(line, EventHandled):
        return f"← {line.event}"[:_MOST]
    if not isinstance(line, InstructionIssued):
        return f"  · {line}"[:_MOST]
    name = type(line.instruction).__name__
    if name in _QUIET and not everything:
        return ""
    step = getattr(line.instruction, "transition", None)
    if step is None:
        return f"    → {line.instruction}"[:_MOST]
    where = f" on {step.cluster}" if step.cluster else ""
    return f"    → {step.task_id} {step.state} (attempt {step.attempt}{where}): {step.code}, {step.sentence}"[:_MOST]


def summary(done: Replayed, fed: int, violations: int) -> str:
    """What came of it, in a line."""
    answers = "as recorded" if done.differs_at is None else f"not as recorded, from line {done.differs_at} on"
    judged = (
        f"{violations} violation{'' if violations == 1 else 's'}" if done.error is None else f"it raised {done.error!r}"
    )
    return f"{fed} event{'' if fed == 1 else 's'}; answers {answers}; {judged}"
