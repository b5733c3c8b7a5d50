"""Check the recorded history of an actor in a chaos round: each rule is one guarantee."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.chaos_history import Note

NOT_KNOWN = "not known"
"""Part of the error of a call that may or may not have run."""
NOT_RUN = ("was not sent", "was not run")


@dataclass(frozen=True)
class Ran:
    """A line that a method wrote about one call. ``token`` is the random value that it returned."""

    item: str
    attempt: int
    caller: int
    number: int
    token: str
    began: float
    ended: float


@dataclass(frozen=True)
class Called:
    """A call as its program saw it: the ``number``-th of this ``caller``. ``error`` is the class of its exception,
    ``ours`` whether that is a SchedulerError. A call without value and error was never answered."""

    caller: int
    number: int
    value: str | None = None
    error: str | None = None
    ours: bool = True
    message: str = ""

    def __str__(self) -> str:
        return f"call {self.caller}/{self.number}"


@dataclass
class ActorHistory:
    """``stored`` is its last state and attempt in the store, ``reported`` the state that its program received. ``made``
    are the lines of its constructor, ``ran`` those of its methods, and ``calls`` the calls of its program."""

    item: str
    stored: tuple[str, int] | None
    reported: str
    made: list[Note] = field(default_factory=list)
    ran: list[Ran] = field(default_factory=list)
    calls: list[Called] = field(default_factory=list)

    def ran_though_lost(self) -> int:
        """How many calls failed although they had run, by the recorded lines."""
        lost = {(call.caller, call.number) for call in self.calls if call.error is not None}
        return len(lost & {(run.caller, run.number) for run in self.ran})


def read_ran(path: Path) -> list[Ran]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [Ran(**json.loads(line)) for line in lines]


def actor_violations(history: ActorHistory) -> list[str]:
    """The violated guarantees, as sentences."""
    return [f"{history.item}: {sentence}" for rule in RULES.values() for sentence in rule(history)]


def _made_once_in_each_attempt(history: ActorHistory) -> Iterator[str]:
    last = 0 if history.stored is None else history.stored[1]
    many = Counter(note.attempt for note in history.made)
    for attempt, times in sorted(many.items()):
        if times > 1:
            yield f"it was made {times} times in attempt {attempt}"
        if attempt > last:
            yield f"it was made in attempt {attempt}, and the store knows of {last}"
    if last not in many:
        yield f"it was accepted, and never made in attempt {last}"
    for run in history.ran:
        if run.attempt not in many:
            yield f"call {run.caller}/{run.number} ran in attempt {run.attempt}, in which it was never made"


def _one_attempt_at_a_time(history: ActorHistory) -> Iterator[str]:
    made = {note.attempt: note.at for note in history.made}
    for before, after in itertools.pairwise(sorted(made)):
        late = [run for run in history.ran if run.attempt == before and run.ended > made[after]]
        if late or made[before] > made[after]:
            yield f"attempt {before} was still active when {after} had begun"


def _at_most_once(history: ActorHistory) -> Iterator[str]:
    for (caller, number), times in Counter((run.caller, run.number) for run in history.ran).items():
        if times > 1:
            yield f"call {caller}/{number} ran {times} times"
    known = {(call.caller, call.number) for call in history.calls}
    for run in history.ran:
        if (run.caller, run.number) not in known:
            yield f"call {run.caller}/{run.number} ran, but was never called"


def _value_matches_run(history: ActorHistory) -> Iterator[str]:
    for call in history.calls:
        if call.value is not None:
            tokens = [run.token for run in history.ran if (run.caller, run.number) == (call.caller, call.number)]
            if tokens != [call.value]:
                yield f"{call} was answered with {call.value}, and what ran returned {', '.join(tokens) or 'no value'}"


def _in_order(history: ActorHistory) -> Iterator[str]:
    runs = sorted(history.ran, key=lambda run: run.began)
    for caller in sorted({run.caller for run in runs}):
        for before, after in itertools.pairwise(run for run in runs if run.caller == caller):
            if before.number > after.number:
                yield f"call {caller}/{before.number} ran before {caller}/{after.number}, which was made earlier"
            if before.ended > after.began:
                yield f"call {caller}/{before.number} was not over when {caller}/{after.number} began"


def _errors_are_accurate(history: ActorHistory) -> Iterator[str]:
    ran = {(run.caller, run.number) for run in history.ran}
    for call in history.calls:
        if call.error is None:
            continue
        if not call.ours:
            yield f"{call} failed with {call.error}, which is not a SchedulerError: {call.message}"
        elif any(words in call.message for words in NOT_RUN):
            if (call.caller, call.number) in ran:
                yield f"{call} ran, but its error denies that: {call.message}"
        elif NOT_KNOWN not in call.message:
            yield f"{call} failed, and its error does not say whether it ran: {call.error}: {call.message}"


def _every_call_is_answered(history: ActorHistory) -> Iterator[str]:
    for call in history.calls:
        if call.value is None and call.error is None:
            yield f"{call} was never answered"


def _ended_by_kill(history: ActorHistory) -> Iterator[str]:
    stored = "nowhere" if history.stored is None else history.stored[0]
    if (stored, history.reported) != ("CANCELLED", "CANCELLED"):
        yield f"it was killed; it is {stored} in the store, but {history.reported} for its program"


RULES: dict[str, Callable[[ActorHistory], Iterable[str]]] = {
    "made once in each attempt": _made_once_in_each_attempt,
    "one attempt at a time": _one_attempt_at_a_time,
    "at most once": _at_most_once,
    "value matches run": _value_matches_run,
    "in order": _in_order,
    "errors are accurate": _errors_are_accurate,
    "every call is answered": _every_call_is_answered,
    "ended by kill": _ended_by_kill,
}
