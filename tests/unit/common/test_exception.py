"""The error tree: one base, texts that say what to do, and errors that can travel."""

from __future__ import annotations

import pickle

import pytest

from ray_multicluster_scheduler.common import exception
from ray_multicluster_scheduler.common.exception import RemoteTraceback, SchedulerError

TREE = [
    kind
    for kind in vars(exception).values()
    if isinstance(kind, type) and issubclass(kind, SchedulerError) and kind is not SchedulerError
]


@pytest.mark.parametrize("kind", TREE, ids=lambda kind: kind.__name__)
def test_every_error_is_in_the_drawing_and_survives_a_pickle(kind: type[SchedulerError]) -> None:
    assert kind.__name__ in (exception.__doc__ or "")
    error = kind("It broke.", task_id="t1", cluster="mac", next_step="mend it")
    assert str(error) == "It broke. What to do: mend it"
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.task_id, copy.cluster) == (kind, str(error), "t1", "mac")


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("It broke", "It broke. "),
        ("It broke?.", "It broke? "),
        ("It broke!", "It broke! "),
        ("It broke..", "It broke. "),
    ],
)
def test_one_full_stop_before_the_advice(message: str, text: str) -> None:
    assert str(SchedulerError(message, next_step="mend it")) == f"{text}What to do: mend it"


def test_advice_is_given_once() -> None:
    """An error that quotes another one shows that one's advice, which is closer to the cause."""
    cause = SchedulerError("It broke.", next_step="mend it")
    text = str(SchedulerError(f"t1 failed: {cause}", next_step="submit it again"))
    assert text == "t1 failed: It broke. What to do: mend it"


def test_standard_handlers_catch_them() -> None:
    with pytest.raises(TimeoutError):
        raise exception.TaskTimeoutError("late")
    with pytest.raises(LookupError):
        raise exception.UnknownItemError("who?")


def test_a_remote_traceback_is_shown_as_it_was() -> None:
    assert str(RemoteTraceback("Traceback …\nValueError: x")) == "\nTraceback …\nValueError: x"
