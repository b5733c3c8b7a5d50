"""dumps_error() pickles an exception of user code so that it is rebuilt without its constructor."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.task_errors import (
    HEAP_TYPE,
    bare_exception,
    exception_parts,
    note,
    set_attribute,
)

_OWN_PICKLING = frozenset(
    {"__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__"}
)


def dumps_error(error: BaseException) -> bytes:
    """Pickle an exception, with its cause and notes, so that ``pickling.loads`` rebuilds it without its constructor.

    Parts that cannot be pickled, or unpickled, are left out, and named in a note. A class that defines how it is
    pickled is pickled its own way if that works. Raises any exception of pickling.
    """
    try:
        return pickling.dumps(_PicklableError(error, ()))
    except Exception:  # noqa: BLE001 - a class with state that only its own code knows
        return pickling.dumps(error.with_traceback(None))


class _PicklableError:
    """An exception to be pickled; unpickling returns the exception. Each part is pickled on its own: a part that
    cannot be pickled or unpickled does not lose the others. ``within``: the exceptions that contain it."""

    def __init__(self, error: BaseException, within: tuple[BaseException, ...]) -> None:
        self._error = error = getattr(error, "_rmcs_plain", error)
        self._within = (*within, error)
        self._lost: list[str] = []

    def __reduce__(self) -> Any:
        error, kind = self._error, type(self._error)
        base_args, attributes = exception_parts(error)
        own = None
        if any(_OWN_PICKLING & vars(base).keys() for base in kind.__mro__ if base.__flags__ & HEAP_TYPE):
            with suppress(Exception):  # then as any other
                own = pickling.dumps(error)
        args = self._arguments(error.args)
        packed_base = None if base_args is error.args else self._arguments(base_args)
        packed = {name: data for name, value in attributes.items() if (data := self._packed(name, value))}
        cause = None if error.__cause__ is None else self._packed("__cause__", error.__cause__)
        return _rebuilt, (kind, own, args, packed_base, packed, cause, self._lost)

    def _arguments(self, args: Iterable[Any]) -> list[bytes]:
        return [self._packed(f"args[{at}]", one) or pickling.dumps(_text_of(one)) for at, one in enumerate(args)]

    def _packed(self, name: str, value: object) -> bytes | None:
        try:
            return pickling.dumps(self._nested(value))
        except Exception as problem:  # noqa: BLE001 - pickling runs arbitrary code; whatever it raises is reported
            self._lost.append(_lost_part(name, problem))
            return None

    def _nested(self, value: Any) -> Any:
        """The value with the exceptions in it, such as those of an ExceptionGroup, prepared to be sent."""
        if isinstance(value, BaseException):
            if any(value is one for one in self._within):
                raise ValueError("it contains itself")
            return _PicklableError(value, self._within)
        if type(value) in (list, tuple):
            return type(value)(self._nested(one) for one in value)
        return value


_LOST = object()


def _rebuilt(
    kind: type[BaseException],
    own: bytes | None,
    args: list[bytes],
    base_args: list[bytes] | None,
    attributes: dict[str, bytes],
    cause: bytes | None,
    lost: list[str],
) -> BaseException:
    """Called by pickle."""

    def value(name: str, data: bytes, default: object = None) -> Any:
        try:
            return pickling.loads(data)
        except Exception as problem:  # noqa: BLE001 - unpickling runs arbitrary code; the rest is rebuilt
            lost.append(_lost_part(name, problem))
            return default

    error = None
    with suppress(Exception):  # then as any other
        error = None if own is None else pickling.loads(own)
    if not isinstance(error, kind):
        made = [value(f"args[{at}]", one) for at, one in enumerate(args)]
        error = bare_exception(kind, made if base_args is None else [value("args", one) for one in base_args])
        set_attribute(error, "args", tuple(made))
    else:
        lost, attributes = [], {name: data for name, data in attributes.items() if name == "__notes__"}
    for name, data in attributes.items():
        found = value(name, data, _LOST)
        if found is not _LOST:
            set_attribute(error, name, found)
    if cause is not None:
        set_attribute(error, "__cause__", value("__cause__", cause))
    if lost:
        note(error, f"came without what cannot be pickled: {'; '.join(lost)}")
    return error


def _lost_part(name: str, problem: Exception) -> str:
    return f"{name} ({type(problem).__name__}: {problem})"


def _text_of(value: object) -> str:
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - a broken repr must not hide the exception
        return f"<{type(value).__qualname__}>"
