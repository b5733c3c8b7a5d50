"""The program of the contenders: it checks what comes back, and answers every request."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from bench._program import SocketTransfers, Workloads, answer, check_map, check_tasks


class Here:
    """Ray's shape, run on the spot; ``spoil`` sees every list of values that get returns."""

    def __init__(self, spoil: Callable[[list[Any]], list[Any]] = lambda values: values) -> None:
        self._spoil = spoil
        self.killed: list[Any] = []

    def remote(self, thing: Any) -> Any:
        return _Instances(thing) if isinstance(thing, type) else _Call(thing)

    def get(self, refs: Any) -> Any:
        return self._spoil(list(refs)) if isinstance(refs, list) else refs

    def kill(self, actor: Any) -> None:
        self.killed.append(actor)


class _Call:
    def __init__(self, fn: Callable[..., Any]) -> None:
        self.remote = fn


class _Instances:
    def __init__(self, cls: type) -> None:
        self._cls = cls

    def remote(self) -> Any:
        actor = self._cls()
        actor.inc = _Call(actor.inc)
        return actor


def test_every_index_and_a_ray_task_each() -> None:
    check_tasks([(0, "x"), (1, "y")], 2)
    with pytest.raises(ValueError, match="2 tasks ran as 1 Ray tasks"):
        check_tasks([(0, "x"), (1, "x")], 2)
    with pytest.raises(ValueError, match="did not return their indices"):
        check_tasks([(1, "x"), (0, "y")], 2)
    with pytest.raises(ValueError, match="did not return their indices"):
        check_tasks([(0, "x")], 2)


def test_every_number_plus_one_in_order() -> None:
    check_map([1, 2, 3], 3)
    with pytest.raises(ValueError, match="something else"):
        check_map([1, 3, 2], 3)


def test_calls_of_an_actor_are_counted_over_all_requests() -> None:
    api = Here()
    workloads = Workloads(api)
    workloads.open_actor()
    assert workloads.actor_calls(3) > 0
    assert workloads.single_actor_calls(3) >= 0
    workloads.close_actor()
    workloads.close_actor()
    assert len(api.killed) == 1
    workloads.open_actor()  # a new one counts from the start again


def test_an_overtaken_call_of_an_actor_is_noticed() -> None:
    workloads = Workloads(Here(spoil=lambda values: values[::-1]))
    with pytest.raises(ValueError, match="lost, repeated or overtaken"):
        workloads.open_actor()


def test_bytes_that_changed_on_the_way_are_noticed() -> None:
    api = Here()
    workloads = Workloads(api)
    assert workloads.echoes(size=1000, count=2) >= 0
    api.get = lambda refs: b""  # type: ignore[method-assign] # one that loses them
    with pytest.raises(ValueError, match="1000 bytes came back as others"):
        workloads.echoes(size=1000, count=1)


def test_large_values_are_measured_and_their_size_is_checked() -> None:
    api = Here()
    with closing(SocketTransfers("127.0.0.1")) as transfers:
        for workloads in (Workloads(api), transfers):
            assert workloads.large_result(size=100_000) > 0
            assert workloads.large_argument(size=100_000) > 0
    api.get = lambda refs: b""  # type: ignore[method-assign] # one that loses them
    with pytest.raises(ValueError, match="1000 bytes arrived as 0"):
        Workloads(api).large_result(size=1000)


def test_a_request_is_answered_with_its_value_or_its_error(capsys: pytest.CaptureFixture[str]) -> None:
    workloads = Workloads(Here())
    assert answer(workloads, {"do": "tiny_tasks", "count": 5})["value"] > 0
    spoiled = Workloads(Here(spoil=lambda values: values[1:]))
    assert answer(spoiled, {"do": "tiny_tasks", "count": 2}) == {
        "error": "ValueError: 2 calls of x + 1 returned something else: got [2]"
    }
    assert "Traceback" in capsys.readouterr().err
