"""The spans of an item that is over, read off its history: the whole of it, its waits, and its attempts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.common.redaction.patterns import masked_line
from ray_multicluster_scheduler.scheduler.lifecycle.attempt_history import AttemptRow, attempts_of
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Transition
from ray_multicluster_scheduler.scheduler.lifecycle.rows import ItemRow
from ray_multicluster_scheduler.scheduler.lifecycle.transitions import LIVE

Words: TypeAlias = dict[str, str | int]
_LONGEST = 500


class Moment(NamedTuple):
    """Something that happened within a span."""

    name: str
    at: float
    words: Words


class ItemSpan(NamedTuple):
    """``part`` tells the spans of an item apart; the one of the whole item is "". ``error`` is why it failed."""

    part: str
    name: str
    begun: float
    ended: float
    words: Words
    error: str | None = None
    moments: tuple[Moment, ...] = ()


def trace_id_of(control_plane: str, item_id: str) -> int:
    """The same after a restart, and another one for an item of this id elsewhere."""
    return _number(f"{control_plane}/{item_id}", 16)


def span_id_of(control_plane: str, item_id: str, part: str) -> int:
    return _number(f"{control_plane}/{item_id}/{part}", 8)


def _number(text: str, size: int) -> int:
    digest = hashlib.sha256(text.encode("utf-8", "backslashreplace")).digest()
    return int.from_bytes(digest[:size], "big") or 1  # 0 means none


def spans_of(row: ItemRow) -> list[ItemSpan]:
    """The whole first. Times are those of the service's clock; secrets are masked as in its answers. Nothing for what
    is not over."""
    end = next((at for at, step in enumerate(row.history) if step.state.terminal), None)
    if end is None:
        return []
    steps, last = row.history[: end + 1], row.history[end]
    fences = dict(enumerate((*row.earlier_fences, row.fence or 0), start=1))
    attempts = [_attempt(one, steps, last) for one in attempts_of(steps, fences)]
    return [_whole(row, last, len(attempts)), *_waits(steps), *attempts]


def _whole(row: ItemRow, last: Transition, attempts: int) -> ItemSpan:
    task = row.task
    name = _shown(task.name)
    words: Words = {
        "rmcs.id": task.id,
        "rmcs.kind": task.kind,
        "rmcs.name": name,
        "rmcs.owner": task.owner,
        **_where(row.cluster),
        "rmcs.state": str(last.state),
        "rmcs.reason": last.code,
        "rmcs.attempts": attempts,
    }
    error = _why(last.code, last.sentence) if last.state is TaskState.FAILED else None
    return ItemSpan("", f"{task.kind} {name}", row.history[0].at, last.at, words, error)


def _waits(steps: Sequence[Transition]) -> Iterator[ItemSpan]:
    """From when it began to wait, for the first time or again, until it was sent or was over."""
    waiting: list[Transition] = []
    waits = 0
    for step in steps:
        if step.state not in LIVE and not step.state.terminal:
            waiting.append(step)
        elif waiting:
            waits += 1
            words: Words = {"rmcs.wait": waits, "rmcs.reason": waiting[-1].code}
            yield ItemSpan(f"wait {waits}", "wait", waiting[0].at, step.at, words, None, _moments(waiting))
            waiting = []


def _attempt(row: AttemptRow, steps: Sequence[Transition], last: Transition) -> ItemSpan:
    words: Words = {
        "rmcs.attempt": row.attempt,
        **_where(row.cluster),
        **({} if row.fence is None else {"rmcs.fence": row.fence}),
        "rmcs.ended_as": row.ended_as or "",
        "rmcs.reason": row.code,
    }
    return ItemSpan(
        f"attempt {row.attempt}",
        f"attempt {row.attempt}",
        row.sent_at,
        last.at if row.ended_at is None else row.ended_at,
        words,
        _why(row.code, row.sentence) if row.ended_as == "failed" else None,
        _moments([step for step in steps if step.attempt == row.attempt and step.state in LIVE]),
    )


def _moments(steps: Sequence[Transition]) -> tuple[Moment, ...]:
    return tuple(Moment(str(step.state), step.at, {"rmcs.reason": step.code}) for step in steps)


def _where(cluster: str | None) -> Mapping[str, str]:
    return {} if cluster is None else {"rmcs.cluster": cluster}


def _why(code: str, sentence: str) -> str:
    return f"{code}: {_shown(sentence)}"


def _shown(text: str) -> str:
    return masked_line(text.encode("utf-8", "backslashreplace").decode())[:_LONGEST]
