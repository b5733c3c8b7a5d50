"""Submission: a validated description with its payload in the cache, or an error and nothing left behind."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest

from ray_multicluster_scheduler.app.client_api.submission.submission import Submission, new_control_plane_id
from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.blob_names import digest_of
from ray_multicluster_scheduler.common.exception import ConfigurationError, SchedulerError, TaskSubmissionError
from ray_multicluster_scheduler.control_plane.config import Settings
from ray_multicluster_scheduler.scheduler.scheduler_core.payload_cache import PayloadCache
from tests.support.links import FakeClock


def make() -> tuple[Submission, PayloadCache]:
    payload_cache = PayloadCache()
    return Submission(Settings(), payload_cache, FakeClock(77.0), "cp1", ["/home/alice"]), payload_cache


def local_function() -> Callable[[int, int], int]:
    def add(a: int, b: int) -> int:
        return a + b

    return add


def test_a_task_and_its_payload() -> None:
    submission, payload_cache = make()
    task, _ = submission.task(local_function(), (1,), {"b": 2}, {"CPU": 2, "memory": "1GiB"}, ["gpu"], priority=3)
    assert (task.kind, task.name.split(".")[-1], task.submitted_at) == ("task", "add", 77.0)
    assert (task.requirements, task.tags, task.priority) == ({"CPU": 2.0, "memory": 1024**3}, ("gpu",), 3)
    assert task.function_digest is not None
    assert task.arguments_digest is not None
    args, kwargs = pickling.loads(payload_cache.get(task.arguments_digest))
    assert pickling.loads(payload_cache.get(task.function_digest))(*args, **kwargs) == 3


@pytest.mark.parametrize("hashes_large", [False, True])
def test_large_arguments_are_hashed_only_where_they_are_compared(hashes_large: bool) -> None:
    payload_cache = PayloadCache(hashes_large=hashes_large)
    submission = Submission(Settings(), payload_cache, FakeClock(77.0), "cp1", [])
    large = b"x" * 2_000_000
    (first, arguments), (second, _) = [submission.task(local_function(), (large, 1)) for _ in range(2)]
    assert (first.arguments_digest == second.arguments_digest == digest_of(arguments.data)) is hashes_large
    assert first.arguments_digest is not None
    assert payload_cache.get(first.arguments_digest) == arguments.data
    for option in ({"dedup": "content"}, {"idempotency_key": "k"}):
        compared, _ = submission.task(local_function(), (large, 1), **option)
        assert compared.arguments_digest == digest_of(arguments.data)


def test_ids_are_different_and_say_whose_they_are() -> None:
    submission, _ = make()
    ids = [submission.task(local_function())[0].id for _ in range(3)] + [submission.job("ls").id]
    assert len(set(ids)) == 4
    assert all("cp1" in one for one in ids)
    assert new_control_plane_id() != new_control_plane_id()


@pytest.mark.parametrize(
    ("needs", "expected"),
    [
        (None, {"CPU": 1.0}),
        ({"GPU": 1}, {"CPU": 1.0, "GPU": 1.0}),
        ({"CPU": 0}, {}),
        ({"num_cpus": 0.5}, {"CPU": 0.5}),
    ],
)
def test_a_task_needs_one_cpu_unless_it_says_otherwise(
    needs: dict[str, Any] | None, expected: dict[str, float]
) -> None:
    assert make()[0].task(local_function(), resource_requirements=needs)[0].requirements == expected


def test_home_paths_among_the_arguments_are_found() -> None:
    task, _ = make()[0].task(local_function(), ("/home/alice/data.csv", "/home/alicex"), {"b": ["/home/alice"]})
    assert set(task.home_paths) == {"/home/alice/data.csv", "/home/alice"}


class Callme:
    def __call__(self) -> int:
        return 1


def test_callables_of_all_kinds_have_a_name() -> None:
    submission, _ = make()
    assert submission.task(Callme())[0].name == "Callme"
    assert submission.task(functools.partial(local_function(), 1))[0].name == "partial"
    assert submission.task(local_function(), name="mine")[0].name == "mine"
    assert submission.task(len, ("abc",))[0].name == "len"


def generator() -> Any:
    yield 1


async def coroutine() -> None:
    pass


async def async_generator() -> Any:
    yield 1


LOCK = threading.Lock()


def captures_a_lock() -> Callable[[], bool]:
    held = LOCK

    def is_held() -> bool:
        return held.locked()

    return is_held


@pytest.mark.parametrize(
    ("arguments", "kind", "says", "next_step"),
    [
        ({"fn": 5}, ConfigurationError, "which is not a function", "not submit_task(f(1, 2))"),
        ({"fn": None}, ConfigurationError, "which is not a function", "pass the function itself"),
        ({"fn": generator, "idempotency_key": "k"}, ConfigurationError, "generator is a generator", "leave"),
        ({"fn": async_generator}, ConfigurationError, "is an async function", "asyncio.run"),
        ({"fn": coroutine}, ConfigurationError, "coroutine is an async function", "asyncio.run"),
        ({"args": 5}, ConfigurationError, "args of .* is int", "args=(x,)"),
        ({"args": "text"}, ConfigurationError, "args of .* is str", "args=(x,)"),
        ({"kwargs": [1]}, ConfigurationError, "kwargs of .* is list", "kwargs="),
        (
            {"args": (1, LOCK)},
            TaskSubmissionError,
            "argument 1 of .*, a lock, cannot be pickled",
            "inside the function",
        ),
        ({"kwargs": {"b": LOCK}}, TaskSubmissionError, "argument 'b' of .*, a lock,", "inside the function"),
        ({"fn": captures_a_lock()}, TaskSubmissionError, "the function .* cannot be pickled", "capturing"),
        ({"resource_requirements": {"CPU": -1}}, ConfigurationError, "CPU", "a number from 0 to 1e300"),
        ({"resource_requirements": [1]}, ConfigurationError, "not a mapping", "CPU"),
        ({"retrys": 1}, ConfigurationError, "'retrys'", "did you mean retries"),
        ({"fallback": "maybe"}, ConfigurationError, "fallback is 'maybe'", "wait"),
        ({"retries": -1}, ConfigurationError, "retries is -1", "0 or more"),
    ],
)
def test_errors_are_raised_at_once_and_nothing_stays_cached(
    arguments: dict[str, Any], kind: type[SchedulerError], says: str, next_step: str
) -> None:
    submission, payload_cache = make()
    with pytest.raises(kind, match=says) as caught:
        submission.task(**{"fn": local_function(), **arguments})
    assert next_step in str(caught.value)
    assert len(payload_cache) == 0


def test_what_cannot_be_pickled_only_together_blames_all_of_it() -> None:
    class Once:
        """Can be pickled an odd number of times only."""

        count = 0

        def __reduce__(self) -> Any:
            type(self).count += 1
            if type(self).count % 2:
                raise TypeError("not now")
            return (int, ())

    submission, _ = make()
    with pytest.raises(TaskSubmissionError, match="taken together"):
        submission.task(local_function(), (Once(),))


def test_a_job() -> None:
    submission, payload_cache = make()
    job = submission.job(
        "python train.py",
        submission_id="nightly-1",
        metadata={"team": "x"},
        resource_requirements={"CPU": 16},
        entrypoint_resources={"CPU": 1},
        tags=["linux"],
        retry_lost=True,
    )
    assert (job.id, job.kind, job.name, job.requirements) == ("nightly-1", "job", "python train.py", {"CPU": 16.0})
    assert job.job is not None
    assert (job.job.metadata, job.job.entrypoint_resources) == ({"team": "x"}, {"CPU": 1.0})
    assert (job.retry_lost, job.tags, job.function_digest, len(payload_cache)) == (True, ("linux",), None, 0)
    assert submission.job("ls").requirements == {}, "unknown is 0"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"entrypoint": "  "}, "entrypoint"),
        ({"entrypoint": ["python", "x.py"]}, "entrypoint"),
        ({"submission_id": ""}, "submission_id"),
        ({"submission_id": "-x"}, "begin with a letter or a digit, then use"),
        ({"submission_id": "."}, "begin with a letter or a digit, then use"),
        ({"submission_id": ".."}, "begin with a letter or a digit, then use"),
        ({"submission_id": "a b"}, "submission_id"),
        ({"submission_id": "x" * 129}, "submission_id"),
        ({"submission_id": 5}, "submission_id"),
        ({"metadata": {"a": 1}}, r"metadata\['a'\]"),
        ({"entrypoint_resources": {"CPU": -1}}, "entrypoint_resources"),
    ],
)
def test_a_wrong_job_is_refused(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        make()[0].job(**{"entrypoint": "ls", **arguments})
