"""Replay a recorded history: feed its events to a new machine, in the same order and at the same times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.control_plane.config.settings import Settings
from ray_multicluster_scheduler.scheduler.lifecycle.machine import SchedulerMachine
from ray_multicluster_scheduler.scheduler.lifecycle.rows import ItemRow
from ray_multicluster_scheduler.simulation.faulty.machine_driver import persisted_id
from ray_multicluster_scheduler.simulation.faulty.run import MakeMachine
from ray_multicluster_scheduler.simulation.faulty.state_dump import dump_state, rebuild_differences
from ray_multicluster_scheduler.simulation.history import (
    ControlPlaneCrashed,
    EventHandled,
    History,
    HistoryLine,
    InstructionIssued,
    RunSetup,
    StateDump,
)


@dataclass(frozen=True, slots=True)
class Replayed:
    """``history`` has this machine's instructions, and the truth as it was recorded.

    ``differs_at`` is the first event of the recorded history that is answered differently now.
    """

    history: History
    differs_at: int | None = None
    error: BaseException | None = None


def replay(recorded: Sequence[HistoryLine], make: MakeMachine = SchedulerMachine) -> Replayed:
    """Replay a whole history. Raises ConfigurationError if it does not begin with its set-up."""
    first = recorded[0] if recorded else None
    if not isinstance(first, RunSetup):
        raise ConfigurationError(
            "The history does not begin with its set-up, so no machine can be made for it.",
            next_step="give the whole file that `rmcs simulate --record FILE` or `make sim-test` wrote",
        )
    settings = Settings(**first.settings)
    machine = make(settings, first.clusters)
    history: History = []
    rows: dict[str, ItemRow] = {}
    differs_at: int | None = None
    for number, line in enumerate(recorded):
        match line:
            case EventHandled(at=at, event=event):
                history.append(line)
                try:
                    answer = [InstructionIssued(at, one) for one in machine.handle(event, at)]
                except Exception as error:  # noqa: BLE001 - a defect of the machine is what a replay looks for
                    return Replayed(history, differs_at, error)
                before, crashed = _recorded_answer(recorded, number)
                answer = answer[: len(before)] if crashed else answer  # it crashed in the middle of its answer
                if differs_at is None and answer != before:
                    differs_at = number
                history.extend(answer)
                for task_id in {name for one in answer if (name := persisted_id(one.instruction)) is not None}:
                    rows[task_id] = machine.row(task_id)
            case InstructionIssued():
                pass
            case StateDump(at=at):
                new_machine = partial(make, settings, machine.registry.list())
                history.append(dump_state(machine, at, rebuild_differences(machine, rows, new_machine, at)))
            case ControlPlaneCrashed():
                history.append(line)
                machine = make(settings, machine.registry.list())
            case _:
                history.append(line)
    return Replayed(history, differs_at)


def _recorded_answer(recorded: Sequence[HistoryLine], number: int) -> tuple[list[HistoryLine], bool]:
    """The instructions recorded after this event (other lines may stand between), and whether a crash followed."""
    answer: list[HistoryLine] = []
    for at in range(number + 1, len(recorded)):
        line = recorded[at]
        if isinstance(line, EventHandled | ControlPlaneCrashed):
            return answer, isinstance(line, ControlPlaneCrashed)
        if isinstance(line, InstructionIssued):
            answer.append(line)
    return answer, False
