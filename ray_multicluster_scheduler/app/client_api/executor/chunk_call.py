"""Runs one chunk of a map, many small calls of one function, inside the cluster.

Standard library only: workers load this module.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.error_pickling import dumps_error
from ray_multicluster_scheduler.common.import_errors import note_import

_MAX_TEXT = 20_000


class Failure(NamedTuple):
    """The failure of one call of a chunk. ``payload`` is the pickled exception, if the user's code raised it."""

    place: int
    error_type: str
    message: str
    traceback: str
    payload: bytes | None = None
    of_result: bool = False


class Answer(NamedTuple):
    """The result of a chunk. ``values`` is one pickled list, with None in the places of the failures."""

    seconds: float
    values: bytes
    failures: list[Failure]


def run_rows(fn: Callable[..., Any], spread: bool, rows: Sequence[Any]) -> Answer:
    """Call ``fn(row)`` for each row, or ``fn(*row)`` with ``spread``. An error fails only its own call."""
    began = time.perf_counter()
    values: list[Any] = []
    failures: list[Failure] = []
    for row in rows:
        try:
            values.append(fn(*row) if spread else fn(row))
        except KeyboardInterrupt:
            raise  # Ray cancels a task this way
        except BaseException as error:  # noqa: BLE001 - the user's exception is the outcome of this call
            failures.append(_failure_of_call(len(values), error))
            values.append(None)
    packed = _packed(values, failures)
    return Answer(time.perf_counter() - began, packed, failures)


def _packed(values: list[Any], failures: list[Failure]) -> bytes:
    try:
        return pickling.dumps(values)
    except Exception:  # noqa: BLE001 - reported below for each value at fault
        for place, value in enumerate(values):
            try:
                pickling.dumps(value)
            except Exception as error:  # noqa: BLE001 - pickling runs arbitrary code; all of it is reported
                sentence = f"the result, a {type(value).__qualname__}, cannot be pickled: {error}"
                failures.append(_failure(place, error, sentence, of_result=True))
                values[place] = None
        return pickling.dumps(values)


def _failure_of_call(place: int, error: BaseException) -> Failure:
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next  # without the frame of run_rows
    if isinstance(error, SystemExit):
        return _failure(place, error, f"the call called sys.exit({error.code!r})")
    failure = _failure(place, error, f"{type(error).__name__}: {_text(error)}{note_import(error)}")
    try:
        return failure._replace(payload=dumps_error(error))
    except Exception as problem:  # noqa: BLE001 - the text of the error is kept instead
        return failure._replace(message=f"{failure.message} (the exception itself cannot be pickled: {problem})")


def _failure(place: int, error: BaseException, sentence: str, *, of_result: bool = False) -> Failure:
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return Failure(place, type(error).__name__, sentence[:_MAX_TEXT], text[-_MAX_TEXT:], of_result=of_result)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as problem:  # noqa: BLE001 - a broken __str__ must not hide the error
        return f"<str() of the error failed: {problem}>"
