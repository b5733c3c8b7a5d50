"""Answers of Ray that are looked for many at a time.

To be told of one answer costs the process two changes of threads, which is more than all the rest of a short call.
While many short calls are under way it is cheaper to look every few milliseconds which of them are done, and to fetch
those together. What is not done after some looks was not short, and its end is told as that of any other call.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias

PAUSE_S = 0.008
"""Between two looks: less than what waits in Ray takes (EARLY_S of slots), and enough for several to be done."""
WINDOW = 128
"""So many are looked at; the others wait behind them."""
PATIENCE = 32
"""Looks. Calls wait behind each other in Ray, and on a busy machine that takes a while even for the shortest."""

Told: TypeAlias = Callable[[bytes | None, BaseException | None], None]
"""The value of a reference, or why there is none."""


def do(step: Callable[[], object]) -> None:
    """One step of many: a defect in it is told, and costs the others nothing."""
    try:
        step()
    except Exception:  # noqa: BLE001 - a defect of ours; in the log of the agent's job it can be found
        traceback.print_exc()


class Ray(Protocol):
    """What is needed of the module ``ray``."""

    def wait(self, refs: list[Any], *, num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]: ...
    def get(self, refs: Any) -> Any: ...


@dataclass(slots=True)
class _Watched:
    ref: Any
    told: Told
    looks: int = 0


class Sweep:
    """Not for several threads. ``watch`` takes those whose end is to be told in the usual way."""

    def __init__(self, ray: Ray, watch: Callable[[Any, Told], None]) -> None:
        self._ray, self._watch = ray, watch
        self._line: deque[_Watched] = deque()

    def __len__(self) -> int:
        return len(self._line)

    def add(self, ref: Any, told: Told) -> None:
        """Somebody will look after this one, soon and often."""
        self._line.append(_Watched(ref, told))

    def look(self) -> None:
        """Tell of those that are done. Whoever is told may add others."""
        window = [self._line.popleft() for _ in range(min(WINDOW, len(self._line)))]
        if not window:
            return
        try:
            done, _ = self._ray.wait([one.ref for one in window], num_returns=len(window), timeout=0)
            values = self._fetch(done)
        except Exception as error:  # noqa: BLE001 - Ray cannot be asked for all of them; it may know more of each
            print(
                f"rmcs agent: looking for {len(window)} answers failed ({error!r}); each is asked for alone", flush=True
            )
            for one in window:
                self._watch(one.ref, one.told)
            return
        answers = dict(zip(done, values, strict=True))
        for one in reversed(window):
            if one.ref not in answers:
                self._look_again(one)
        for one in window:
            if one.ref in answers:
                do(partial(one.told, *answers[one.ref]))

    def _look_again(self, one: _Watched) -> None:
        one.looks += 1
        if one.looks < PATIENCE:
            self._line.appendleft(one)
        else:
            self._watch(one.ref, one.told)

    def _fetch(self, refs: Sequence[Any]) -> list[tuple[bytes | None, BaseException | None]]:
        try:
            return [(value, None) for value in self._ray.get(list(refs))]
        except Exception:  # noqa: BLE001 - one of them has an error for a value: find out which
            return [self._fetch_one(ref) for ref in refs]

    def _fetch_one(self, ref: Any) -> tuple[bytes | None, BaseException | None]:
        try:
            return self._ray.get(ref), None
        except Exception as error:  # noqa: BLE001 - this is its answer
            return None, error
