"""Spans of a finished item, from its history: one for the item, one for each wait and one for each attempt."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.common.redaction import mask_text
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Transition
from ray_multicluster_scheduler.scheduler.lifecycle.rows import ItemRow
from ray_multicluster_scheduler.scheduler.lifecycle.transitions import LIVE, AttemptRow, attempts_of

Attributes: TypeAlias = dict[str, str | int]
_MAX_LENGTH = 500


class SpanEvent(NamedTuple):
    """A state change within a span."""

    name: str
    at: float
    attributes: Attributes


class ItemSpan(NamedTuple):
    """``part`` identifies a span within its item; "" is the item itself. ``error`` is set if it failed."""

    part: str
    name: str
    started_at: float
    ended_at: float
    attributes: Attributes
    error: str | None = None
    events: tuple[SpanEvent, ...] = ()


def trace_id_of(control_plane: str, item_id: str) -> int:
    """Stable over restarts, and different for an item of the same id of another control plane."""
    return _number(f"{control_plane}/{item_id}", 16)


def span_id_of(control_plane: str, item_id: str, part: str) -> int:
    return _number(f"{control_plane}/{item_id}/{part}", 8)


def _number(text: str, size: int) -> int:
    digest = hashlib.sha256(text.encode("utf-8", "backslashreplace")).digest()
    return int.from_bytes(digest[:size], "big") or 1  # 0 means none


def spans_of(row: ItemRow) -> list[ItemSpan]:
    """The span of the item first; empty for an unfinished item. Times are the service's; secrets are masked."""
    end = next((at for at, step in enumerate(row.history) if step.state.terminal), None)
    if end is None:
        return []
    steps, last = row.history[: end + 1], row.history[end]
    fences = dict(enumerate((*row.earlier_fences, row.fence or 0), start=1))
    attempts = [_attempt_span(one, steps, last) for one in attempts_of(steps, fences)]
    return [_item_span(row, last, len(attempts)), *_wait_spans(steps), *attempts]


def _item_span(row: ItemRow, last: Transition, attempts: int) -> ItemSpan:
    task = row.task
    name = _masked(task.name)
    attributes: Attributes = {
        "rmcs.id": task.id,
        "rmcs.kind": task.kind,
        "rmcs.name": name,
        "rmcs.owner": task.owner,
        **({} if row.pool is None else {"rmcs.pool": row.pool}),
        **({} if row.cluster is None else {"rmcs.cluster": row.cluster}),
        "rmcs.state": str(last.state),
        "rmcs.reason": last.code,
        "rmcs.attempts": attempts,
    }
    error = _error_text(last.code, last.sentence) if last.state is TaskState.FAILED else None
    return ItemSpan("", f"{task.kind} {name}", row.history[0].at, last.at, attributes, error)


def _wait_spans(steps: Sequence[Transition]) -> Iterator[ItemSpan]:
    """One span for each time it waited: until it was dispatched, or until its end."""
    waiting: list[Transition] = []
    waits = 0
    for step in steps:
        if step.state not in LIVE and not step.state.terminal:
            waiting.append(step)
        elif waiting:
            waits += 1
            attributes: Attributes = {"rmcs.wait": waits, "rmcs.reason": waiting[-1].code}
            yield ItemSpan(f"wait {waits}", "wait", waiting[0].at, step.at, attributes, None, _events(waiting))
            waiting = []


def _attempt_span(row: AttemptRow, steps: Sequence[Transition], last: Transition) -> ItemSpan:
    attributes: Attributes = {
        "rmcs.attempt": row.attempt,
        **({} if row.cluster is None else {"rmcs.cluster": row.cluster}),
        **({} if row.fence is None else {"rmcs.fence": row.fence}),
        "rmcs.ended_as": row.ended_as or "",
        "rmcs.reason": row.code,
    }
    return ItemSpan(
        f"attempt {row.attempt}",
        f"attempt {row.attempt}",
        row.sent_at,
        last.at if row.ended_at is None else row.ended_at,
        attributes,
        _error_text(row.code, row.sentence) if row.ended_as == "failed" else None,
        _events([step for step in steps if step.attempt == row.attempt and step.state in LIVE]),
    )


def _events(steps: Sequence[Transition]) -> tuple[SpanEvent, ...]:
    return tuple(SpanEvent(str(step.state), step.at, {"rmcs.reason": step.code}) for step in steps)


def _error_text(code: str, sentence: str) -> str:
    return f"{code}: {_masked(sentence)}"


def _masked(text: str) -> str:
    return mask_text(text.encode("utf-8", "backslashreplace").decode())[:_MAX_LENGTH]
