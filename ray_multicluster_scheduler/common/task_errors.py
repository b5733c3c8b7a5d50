"""Exceptions of user code: pickles them (:func:`dumps_error`), and makes them instances of RayTaskError, so that
``except`` clauses that were written for Ray catch them.

``except`` looks at the classes of an exception and runs no code of ours, so an exception of user code is raised as an
instance of a class that is made on the way: it inherits from the user's class and from RayTaskError.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, SupportsIndex, cast

from ray_multicluster_scheduler.common import pickling

_HEAP_TYPE = 1 << 9
"""Flag of classes that a class statement made; classes of the interpreter lack it."""
_OWN_PICKLING = frozenset(
    {"__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__"}
)


class RayError(Exception):
    """Base of all errors of items: of SchedulerError, and of RayTaskError."""


class RayTaskError(RayError):
    """User code raised an exception in a task, an actor or a job's driver. It is an instance of the user's class, too,
    unless that cannot be extended."""

    @property
    def cause(self) -> BaseException:
        """The user's exception, as an instance of its own class alone."""
        plain = getattr(self, "_rmcs_plain", self)
        assert isinstance(plain, BaseException)
        return plain

    @property
    def traceback_str(self) -> str:
        """The traceback in the cluster."""
        last: BaseException = self
        while last.__cause__ is not None:
            last = last.__cause__
        return str(getattr(last, "text", ""))

    def as_instanceof_cause(self) -> RayTaskError:
        """Return itself: it is an instance of the class of its cause."""
        return self


class _Extended:
    """First base of the classes that are made here."""

    __slots__ = ()

    _rmcs_plain: Exception

    def __init_subclass__(cls, **_: object) -> None:
        """Nothing: the hook of the user's class is for the user's own classes."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return self._rmcs_plain.__reduce_ex__(protocol)


def as_task_error(error: Exception) -> Exception:
    """Return the exception as an instance of its class and of RayTaskError, with the same attributes. Classes that
    cannot be extended, such as some that are written in C, are left as they are. Calls no code of the user's class."""
    if isinstance(error, RayTaskError):
        return error
    try:
        return _instance(error)
    except Exception:  # noqa: BLE001 - whatever its class does not allow
        return error


def _instance(error: Exception) -> Exception:
    base_args, attributes = _parts(error)
    new: Any = _bare(_extended(cast("Any", type(error))), base_args)
    own = vars(error)
    for name in attributes.keys() - own.keys():
        set_attribute(new, name, attributes[name])
    # The dictionary is the same: what is added to the one, such as a note, is pickled with the other.
    for name in ("__dict__", "args", "__cause__", "__context__", "__suppress_context__"):
        set_attribute(new, name, getattr(error, name))
    set_attribute(new, "_rmcs_plain", error)
    assert isinstance(new, Exception)
    return new


def _parts(error: BaseException) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What the constructor of the interpreter's class takes, and all attributes. Raises TypeError for a class that is
    written in C and has state of its own."""
    kind = type(error)
    made_by, base_args, *state = _interpreter_class(kind).__reduce__(error)
    if made_by is not kind:
        raise TypeError(f"{kind.__qualname__} has its own way to be pickled")
    attributes = dict((state and state[0]) or {}) | vars(error)
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(error, name):
                attributes[name] = getattr(error, name)
    return base_args, attributes


def _bare(kind: type[BaseException], base_args: Sequence[Any]) -> BaseException:
    """Make an exception by the interpreter's class, which sets what is no attribute in Python, such as errno. Calls no
    code of the user's class."""
    made_by = _interpreter_class(kind)
    error: BaseException = made_by.__new__(kind, *base_args)
    made_by.__init__(error, *base_args)
    return error


def _interpreter_class(kind: Any) -> Any:
    while kind.__flags__ & _HEAP_TYPE:
        kind = kind.__base__
    return kind


# Sending an exception ---------------------------------------------------------------------------------------


def dumps_error(error: BaseException) -> bytes:
    """Pickle an exception, with its cause and notes, so that ``pickling.loads`` rebuilds it without its constructor.

    Parts that cannot be pickled, or unpickled, are left out, and named in a note. A class that defines how it is
    pickled is pickled its own way if that works. Raises any exception of pickling.
    """
    try:
        return pickling.dumps(_Sent(error, ()))
    except Exception:  # noqa: BLE001 - a class with state that only its own code knows
        return pickling.dumps(error.with_traceback(None))


class _Sent:
    """An exception to be pickled; unpickling returns the exception. Each part is pickled on its own, so that one that
    cannot be pickled or unpickled costs no other. ``within``: the exceptions that contain it."""

    def __init__(self, error: BaseException, within: tuple[BaseException, ...]) -> None:
        self._error = error = getattr(error, "_rmcs_plain", error)
        self._within = (*within, error)
        self._lost: list[str] = []

    def __reduce__(self) -> Any:
        error, kind = self._error, type(self._error)
        base_args, attributes = _parts(error)
        own = None
        if any(_OWN_PICKLING & vars(base).keys() for base in kind.__mro__ if base.__flags__ & _HEAP_TYPE):
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
            return _Sent(value, self._within)
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
        error = _bare(kind, made if base_args is None else [value("args", one) for one in base_args])
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


def set_attribute(error: BaseException, name: str, value: object) -> None:
    """Set an attribute without code of the user's class, which may refuse it, as a frozen dataclass does."""
    try:
        object.__setattr__(error, name, value)
    except AttributeError:  # hidden by a property of its class
        error.__dict__[name] = value


def note(error: BaseException, text: str) -> None:
    """Add a note, as :func:`set_attribute` does."""
    set_attribute(error, "__notes__", [*getattr(error, "__notes__", ()), text])


def _text_of(value: object) -> str:
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - a broken repr must not hide the exception
        return f"<{type(value).__qualname__}>"


@functools.lru_cache(maxsize=256)
def _extended(kind: Any) -> type:
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    made: type = type(kind)(kind.__name__, (_Extended, kind, RayTaskError), {**names, "__slots__": ("_rmcs_plain",)})
    return made
