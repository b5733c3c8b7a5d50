"""Exceptions of user code as instances of RayTaskError, and Ray's names of exceptions."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, ClassVar

import cloudpickle
import pytest

import ray_multicluster_scheduler as ray
from ray_multicluster_scheduler import exceptions
from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.error_pickling import dumps_error
from ray_multicluster_scheduler.common.exception import ConfigurationError, RemoteError, SchedulerError
from ray_multicluster_scheduler.common.task_errors import RayTaskError, as_task_error

RAY_PYTHON = Path(__file__).resolve().parents[3] / ".venv-ray" / "bin" / "python"


class OfAUser(Exception):
    """Has a constructor with other arguments than ``args``."""

    def __init__(self, a: int, b: str) -> None:
        super().__init__(f"{a}-{b}")
        self.a, self.b = a, b


class Slotted(KeyError):
    __slots__ = ("code",)


class Registered(ValueError):
    known: ClassVar[list[type]] = []

    def __init_subclass__(cls) -> None:
        cls.known.append(cls)


class CausesTrouble(RuntimeError):
    cause = "the user's own attribute"


def slotted() -> Slotted:
    error = Slotted("x")
    error.code = 7
    return error


ERRORS: list[Exception] = [
    ValueError("bad", 3),
    KeyError("k"),
    FileNotFoundError(2, "No such file", "name"),
    UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"),
    StopIteration(4),
    ImportError("no", name="n", path="p"),
    SyntaxError("wrong", ("file", 1, 2, "text")),
    ExceptionGroup("several", [ValueError("one")]),
    OfAUser(1, "b"),
    slotted(),
    ConfigurationError("wrong", task_id="t1", next_step="correct it"),
    TimeoutError(),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
class TestUserErrors:
    def test_it_is_caught_by_both_names(self, error: Exception) -> None:
        task_error = as_task_error(error)
        with pytest.raises(RayTaskError):
            raise task_error
        with pytest.raises(type(error)):
            raise task_error
        assert isinstance(task_error, exceptions.RayError)

    def test_it_looks_the_same(self, error: Exception) -> None:
        task_error = as_task_error(error)
        names = [name for name in dir(error) if not name.startswith("__") and not callable(getattr(error, name, None))]
        assert [getattr(task_error, name, None) for name in names] == [getattr(error, name, None) for name in names]
        assert (str(task_error), repr(task_error)) == (str(error), repr(error))
        kind, plain = type(task_error), type(error)
        assert (kind.__name__, kind.__module__, kind.__doc__) == (plain.__name__, plain.__module__, plain.__doc__)

    def test_it_is_pickled_as_itself(self, error: Exception) -> None:
        task_error: Any = as_task_error(error)
        assert task_error.cause is error
        if isinstance(error, OfAUser):  # cannot be unpickled by itself either
            return
        task_error.add_note("a note")
        for again in (pickle.loads(pickle.dumps(task_error)), cloudpickle.loads(cloudpickle.dumps(task_error))):
            assert type(again) is type(error)
            assert str(again) == str(error)
            assert isinstance(error, SchedulerError) or again.__notes__[-1] == "a note"
        assert type(copy.copy(task_error)) is type(error)


class WithKeyword(Exception):
    def __init__(self, *, code: int) -> None:
        super().__init__()
        self.code = code


class Failing(OSError):
    def __init__(self, path: str) -> None:
        super().__init__(2, "gone", path)
        self.path = path


class Undecodable(UnicodeDecodeError):
    def __init__(self, data: bytes) -> None:
        super().__init__("utf-8", data, 0, 1, "bad")


class Mixed(ValueError, OSError):
    """The layout is that of OSError, which is not the first of its bases."""


class Several(ExceptionGroup[Exception]):
    def __new__(cls, number: int) -> Several:
        return super().__new__(cls, "several", [OfAUser(at, "x") for at in range(number)])

    def __init__(self, number: int) -> None:
        self.number = number


class OwnWay(Exception):
    def __init__(self, a: int, b: int) -> None:
        super().__init__("own")
        self.sum = a + b

    def __reduce__(self) -> Any:
        return OwnWay, (self.sum, 100)


class Unwilling(OwnWay):
    def __reduce__(self) -> Any:
        raise RuntimeError("not me")


class Unable(OwnWay):
    def __reduce__(self) -> Any:
        return Unable, ("too few",)


class ReadOnly(Exception):
    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.__dict__["code"] = code

    @property
    def code(self) -> int:
        return int(self.__dict__["code"])

    def __setattr__(self, name: str, value: object) -> None:
        raise TypeError("read only")


def sent(error: BaseException) -> Any:
    return pickling.loads(dumps_error(error))


class TestSending:
    @pytest.mark.parametrize(
        "error",
        [
            *ERRORS,
            WithKeyword(code=3),
            Failing("/x"),
            Undecodable(b"x"),
            ReadOnly("r", 4),
            Unwilling(1, 2),
            Unable(1, 2),
        ],
        ids=lambda error: type(error).__name__,
    )
    def test_it_arrives_as_it_was(self, error: Exception) -> None:
        there = sent(error)
        assert type(there) is type(error)
        assert (str(there), repr(there.args)) == (str(error), repr(error.args))
        for name in ("__dict__", "errno", "filename", "name", "path", "start", "value", "code", "lineno"):
            assert repr(getattr(there, name, None)) == repr(getattr(error, name, None)), name
        assert type(as_task_error(there)).__mro__[2] is type(error)

    def test_a_group_with_exceptions_of_all_kinds(self) -> None:
        there = sent(Several(2))
        assert (type(there), there.number, there.message) == (Several, 2, "several")
        assert [(type(one), one.a) for one in there.exceptions] == [(OfAUser, 0), (OfAUser, 1)]

    def test_the_layout_of_its_class_need_not_be_that_of_its_first_base(self) -> None:
        there = sent(Mixed("m"))
        assert (type(there), there.args) == (Mixed, ("m",))

    def test_a_way_of_its_own_is_used(self) -> None:
        assert sent(OwnWay(1, 2)).sum == 103

    def test_cause_and_notes(self) -> None:
        error = OfAUser(1, "b")
        error.__cause__ = OfAUser(2, "c")
        error.add_note("look")
        there = sent(error)
        assert (there.__cause__.a, there.__notes__) == (2, ["look"])
        own = OwnWay(1, 2)
        own.add_note("look")
        assert sent(own).__notes__ == ["look"]

    def test_only_what_cannot_be_pickled_is_left_out(self) -> None:
        error: Any = OfAUser(1, "b")
        error.lock, error.itself, error.others = threading.Lock(), error, [OfAUser(3, "d"), 4]
        error.args = ("text", error.lock)
        there = sent(error)
        assert (there.a, there.others[0].a, there.others[1]) == (1, 3, 4)
        assert there.args == ("text", repr(error.lock))
        assert not hasattr(there, "lock")
        assert not hasattr(there, "itself")
        (note,) = there.__notes__
        assert "came without what cannot be pickled: args[1] (TypeError" in note
        assert "lock (TypeError" in note
        assert "itself (ValueError: it contains itself)" in note

    def test_only_what_cannot_be_unpickled_is_left_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        error: Any = OfAUser(1, "b")
        error.far = Slotted("x")
        data = dumps_error(error)
        monkeypatch.delattr(sys.modules[__name__], "Slotted")
        there = pickling.loads(data)
        assert there.a == 1
        assert not hasattr(there, "far")
        assert "far (AttributeError" in there.__notes__[0]

    def test_its_class_may_be_local(self) -> None:
        class Local(OfAUser):
            pass

        assert sent(Local(1, "b")).b == "b"


def test_the_class_is_made_once_and_without_the_hook_of_the_users_class() -> None:
    first, second = as_task_error(Registered("a")), as_task_error(Registered("b"))
    assert type(first) is type(second)
    assert Registered.known == []


def test_an_attribute_of_the_user_is_not_hidden() -> None:
    assert as_task_error(CausesTrouble()).cause == "the user's own attribute"  # type: ignore[attr-defined]


def test_task_error_is_not_wrapped_again() -> None:
    error = RemoteError("text")
    assert as_task_error(error) is error
    assert error.cause is error
    assert error.as_instanceof_cause() is error
    once = as_task_error(ValueError("bad"))
    assert as_task_error(once) is once


def test_a_class_that_cannot_be_extended_stays() -> None:
    class Meta(type):
        def __call__(cls, *args: Any) -> Any:
            return super().__call__(*args)

        def __new__(mcs, name: str, bases: tuple[type, ...], names: dict[str, Any]) -> Any:
            if any(type(base) is mcs for base in bases):
                raise TypeError("final")
            return super().__new__(mcs, name, bases, names)

    class Final(Exception, metaclass=Meta):
        pass

    error = Final("x")
    assert as_task_error(error) is error


def test_names_of_ray_are_attributes_of_the_package() -> None:
    assert ray.exceptions.GetTimeoutError is ray.TaskTimeoutError
    assert ray.exceptions.RayActorError is ray.ActorDiedError
    assert issubclass(SchedulerError, ray.exceptions.RayError)
    assert not issubclass(SchedulerError, ray.exceptions.RayTaskError)
    assert {"exceptions", "util"} <= set(dir(ray))


@pytest.mark.skipif(not RAY_PYTHON.exists(), reason="needs the interpreter with Ray")
def test_every_exception_of_the_pinned_ray_has_its_name_here() -> None:
    code = (
        "from ray import exceptions as e\n"
        "print(*[n for n, v in vars(e).items() if isinstance(v, type) and issubclass(v, e.RayError)])"
    )
    found = subprocess.run([str(RAY_PYTHON), "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert len(found) > 30
    assert set(found) - set(exceptions.__all__) == set()
    assert all(issubclass(getattr(exceptions, name), exceptions.RayError) for name in exceptions.__all__)
    assert sys.modules["ray_multicluster_scheduler.exceptions"] is exceptions
