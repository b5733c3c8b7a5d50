"""Makes exceptions of user code instances of RayTaskError, too, for ``except`` clauses that were written for Ray.

``except`` looks at the classes of an exception and runs no code of ours, so an exception of user code is raised as an
instance of a class that is made on the way: it inherits from the user's class and from RayTaskError.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, SupportsIndex, cast

HEAP_TYPE = 1 << 9
"""Flag of classes that a class statement made; classes of the interpreter lack it."""


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
    base_args, attributes = exception_parts(error)
    new: Any = bare_exception(_extended(cast("Any", type(error))), base_args)
    own = vars(error)
    for name in attributes.keys() - own.keys():
        set_attribute(new, name, attributes[name])
    # The dictionary is the same: what is added to the one, such as a note, is pickled with the other.
    for name in ("__dict__", "args", "__cause__", "__context__", "__suppress_context__"):
        set_attribute(new, name, getattr(error, name))
    set_attribute(new, "_rmcs_plain", error)
    assert isinstance(new, Exception)
    return new


def exception_parts(error: BaseException) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of the interpreter's class, and all attributes. Raises TypeError for a class that is
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


def bare_exception(kind: type[BaseException], base_args: Sequence[Any]) -> BaseException:
    """Make an exception by the interpreter's class, which sets what is no attribute in Python, such as errno. Calls no
    code of the user's class."""
    made_by = _interpreter_class(kind)
    error: BaseException = made_by.__new__(kind, *base_args)
    made_by.__init__(error, *base_args)
    return error


def _interpreter_class(kind: Any) -> Any:
    while kind.__flags__ & HEAP_TYPE:
        kind = kind.__base__
    return kind


def set_attribute(error: BaseException, name: str, value: object) -> None:
    """Set an attribute without code of the user's class, which may refuse it, as a frozen dataclass does."""
    try:
        object.__setattr__(error, name, value)
    except AttributeError:  # hidden by a property of its class
        error.__dict__[name] = value


def note(error: BaseException, text: str) -> None:
    """Add a note, as :func:`set_attribute` does."""
    set_attribute(error, "__notes__", [*getattr(error, "__notes__", ()), text])


@functools.lru_cache(maxsize=256)
def _extended(kind: Any) -> type:
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    made: type = type(kind)(kind.__name__, (_Extended, kind, RayTaskError), {**names, "__slots__": ("_rmcs_plain",)})
    return made
