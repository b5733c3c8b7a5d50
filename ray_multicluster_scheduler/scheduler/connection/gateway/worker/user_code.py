"""Loads user functions and arguments in a worker process, and turns their results, errors and output into data."""

from __future__ import annotations

import io
import traceback
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.error_pickling import dumps_error
from ray_multicluster_scheduler.common.frames import Blob
from ray_multicluster_scheduler.common.home_paths import move_home_paths
from ray_multicluster_scheduler.common.import_errors import explain_import, note_import
from ray_multicluster_scheduler.common.object_argument import (
    ReferencedValues,
    WithReferences,
    fill_in,
    references_to,
)
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.codec import Homes

Outcome: TypeAlias = tuple[dict[str, Any], Sequence[Blob]]
"""The head and the payload of an envelope."""

T = TypeVar("T")
_KEPT_FUNCTIONS = 128
_functions: OrderedDict[str, Callable[..., Any]] = OrderedDict()
_MAX_TEXT = 20_000


def load_function(digest: str, function: Blob) -> Callable[..., Any]:
    """Unpickle a function, or return it from the cache. Raises any exception of unpickling."""
    target = _functions.get(digest)
    if target is None:
        target = _functions[digest] = pickling.loads(function)
        if len(_functions) > _KEPT_FUNCTIONS:
            _functions.popitem(last=False)
    return target


def load_call(
    homes: Homes, arguments: Blob, objects: Sequence[Blob], load: Callable[[], T]
) -> tuple[T, Sequence[Any], dict[str, Any], int]:
    """Load the code by ``load``, unpickle the arguments, insert objects, and move paths to this cluster's home. Raises
    any exception of unpickling. The last is the number of values that a method returns (in the pickle, 1 is left out).
    """
    call = pickling.loads(arguments)
    if not isinstance(call, WithReferences):
        return _load_call(homes, call, objects, load)
    with references_to(ReferencedValues(dict(zip(call.names, objects, strict=True)))):
        return _load_call(homes, pickling.loads(call.pickled), objects, load)


def _load_call(
    homes: Homes, call: Sequence[Any], objects: Sequence[Blob], load: Callable[[], T]
) -> tuple[T, Sequence[Any], dict[str, Any], int]:
    target = load()
    args, kwargs, *returns = call
    if objects:
        args, kwargs = fill_in(args, kwargs, lambda index: pickling.loads(objects[index]))
    if homes is not None:
        (args, kwargs), _ = move_home_paths((args, kwargs), *homes)
    return target, args, kwargs, returns[0] if returns else 1


def succeeded(value: Any, of: str) -> Outcome:
    """The outcome of a call that returned; ``of`` ("task's", "method's") is used in the error message."""
    try:
        return {"status": "succeeded"}, pickling.dumps_pieces(value)
    except Exception as error:  # noqa: BLE001 - pickling runs arbitrary code; every error is reported
        sentence = f"the {of} result, a {type(value).__qualname__}, cannot be pickled: {error}"
        return {**failed("permanent", error, sentence), "code": "RESULT_NOT_PICKLABLE"}, ()


def not_loadable(error: Exception) -> dict[str, Any]:
    """The head for a call with a function or arguments that cannot be unpickled."""
    why = explain_import(error)
    if why and isinstance(error, ModuleNotFoundError):
        return {**failed("permanent", error, why), "code": "MODULE_NOT_FOUND"}
    sentence = f"the function or its arguments cannot be loaded on the cluster: {type(error).__name__}: {error}"
    return {**failed("permanent", error, f"{sentence}. {why}" if why else sentence), "code": "NOT_LOADABLE"}


def user_error(error: BaseException) -> Outcome:
    """The outcome of a call that raised. The first frame of the traceback, which is ours, is left out."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next
    head = failed("user", error, f"{type(error).__name__}: {_text(error)}{note_import(error)}")
    try:
        return head, [dumps_error(error)]
    except Exception as problem:  # noqa: BLE001 - the text of the error is kept instead
        head["message"] += f" (the exception itself cannot be pickled: {problem})"
        return head, ()


def failed(failure: str, error: BaseException, sentence: str) -> dict[str, Any]:
    """The head of a failed call."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return {
        "status": "failed",
        "failure": failure,
        "error_type": type(error).__name__,
        "message": sentence[:_MAX_TEXT],
        "traceback": text[-_MAX_TEXT:],
    }


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as problem:  # noqa: BLE001 - a broken __str__ must not hide the error
        return f"<its str() failed: {problem}>"


class Tee(io.TextIOBase):
    """A text stream that also passes its text to a callback.

    Its other attributes (``buffer``, ``reconfigure`` …) are those of the original stream; text written through them is
    only in the worker's own log.
    """

    def __init__(self, original: Any, callback: Callable[[str], None]) -> None:
        self._original, self._callback = original, callback

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def write(self, text: str) -> int:
        self._callback(text)
        self._original.write(text)
        return len(text)

    def flush(self) -> None:
        self._original.flush()

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        number: int = self._original.fileno()
        return number

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a plain attribute there; here it follows the original's
        return str(getattr(self._original, "encoding", "utf-8"))

    def writable(self) -> bool:
        return True
