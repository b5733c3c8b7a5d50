"""Functions and methods with several values: as many as were asked for, in a tuple, wherever they are used."""

from __future__ import annotations

from typing import Any

import pytest

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.object_argument import ObjectArgument, fill_in
from ray_multicluster_scheduler.common.several_returns import (
    SeveralReturns,
    as_many,
    check_num_returns,
    rays_num_returns,
)


@pytest.mark.parametrize("value", [(1, 2), [1, 2], {1, 2}, {1: "a", 2: "b"}])
def test_whatever_holds_two_becomes_two(value: Any) -> None:
    assert as_many(value, 2, "f") == (1, 2)
    assert SeveralReturns(lambda: value, 2)() == (1, 2)


def test_one_is_left_as_it_is_and_none_is_none() -> None:
    value = [1, 2]
    assert as_many(value, 1, "f") is value
    assert as_many(value, 0, "f") is None


@pytest.mark.parametrize(("value", "held"), [([1], "1 values"), ((1, 2, 3), "3 values"), (5, "a int")])
def test_another_number_is_an_error(value: Any, held: str) -> None:
    with pytest.raises(ValueError, match=f"Counter.pair returned {held}, but num_returns is 2"):
        as_many(value, 2, "Counter.pair")


@pytest.mark.parametrize("value", [(1, 2), {1, 2}, {1: "a", 2: "b"}])
def test_a_part_as_an_argument_is_the_part_that_its_handle_gives(value: Any) -> None:
    args, kwargs = fill_in([ObjectArgument(0, 0)], {"b": ObjectArgument(0, 1)}, lambda _: value)
    assert (args, kwargs) == ([1], {"b": 2})


def test_check_num_returns() -> None:
    assert [check_num_returns(number) for number in (None, 0, 1, 7)] == [1, 0, 1, 7]
    words = ("streaming", "dynamic")
    assert [rays_num_returns(check_num_returns(word)) for word in words] == list(words)
    assert check_num_returns(None, lambda: (yield 1)) == check_num_returns("streaming")
    for wrong, says in ((True, "is True"), (-1, "is -1"), (1.5, "is 1.5"), ("some", "is 'some'")):
        with pytest.raises(ConfigurationError, match=says):
            check_num_returns(wrong)
