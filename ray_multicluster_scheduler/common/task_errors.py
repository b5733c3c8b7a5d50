"""RayError and RayTaskError: let ``except`` clauses that were written for Ray catch what our verbs raise.

``except`` looks at the classes of an exception and runs no code of ours, so an exception of user code is raised as an
instance of a class that is made on the way: it inherits from the user's class and from RayTaskError.
"""

from __future__ import annotations

import functools
from typing import Any, SupportsIndex, cast

_HEAP_TYPE = 1 << 9
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
        return str(getattr(self.__cause__, "text", ""))

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
    kind = _extended(cast("Any", type(error)))
    made_by: Any = next(base for base in type(error).__mro__ if not base.__flags__ & _HEAP_TYPE)
    _, args, *state = made_by.__reduce__(error)
    # The constructor of the interpreter's class sets what is no attribute in Python, such as errno.
    new: Any = made_by.__new__(kind, *args)
    made_by.__init__(new, *args)
    new.args = error.args
    own = vars(error)
    for name, value in ((state and state[0]) or {}).items():
        if name not in own:
            setattr(new, name, value)
    new.__dict__ = own  # the same: what is added to the one, such as a note, is pickled with the other
    for base in type(error).__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(error, name) and name not in ("__dict__", "__weakref__"):
                setattr(new, name, getattr(error, name))
    new._rmcs_plain = error
    new.__cause__, new.__context__ = error.__cause__, error.__context__
    new.__suppress_context__ = error.__suppress_context__
    assert isinstance(new, Exception)
    return new


@functools.lru_cache(maxsize=256)
def _extended(kind: Any) -> type:
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    made: type = type(kind)(kind.__name__, (_Extended, kind, RayTaskError), {**names, "__slots__": ("_rmcs_plain",)})
    return made
