"""Many questions, or many orders, of which a service answers a few at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")
AT_ONCE = 8


def side_by_side(ask: Callable[[T], R], things: Iterable[T]) -> Iterator[R]:
    """The answer for each, in their order. So many are asked at once, and the next ones when those have answered: who
    stops asking for answers, or is interrupted, leaves no others behind. Raises what it raises."""
    from concurrent.futures import ThreadPoolExecutor

    rest = iter(things)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        while some := list(islice(rest, AT_ONCE)):
            yield from pool.map(ask, some)
