"""RayThreads: runs blocking calls of Ray on threads, and passes their results to the agent's event loop.

Submitting a call with small arguments takes less time than a thread switch, so it happens on the loop. Creating an
actor, storing a large value and submitting the first call of a runtime environment may block.

A callback for one result costs two thread switches, more than all the rest of a short call. While many short calls run,
it is cheaper to poll every few milliseconds and to fetch all ready results at once. A call that is not done after some
polls is not short, and gets a callback of its own.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias

POLL_PAUSE_S = 0.008
"""Less than the work that waits in Ray (see EARLY_S), and enough for several results to be ready."""
WINDOW = 128
"""The number of calls that are polled; the others wait behind them."""
MAX_POLLS = 32
"""Per call. Calls wait behind each other in Ray, and on a busy machine that takes a while even for the shortest."""

Step: TypeAlias = Callable[[], object]
OnResult: TypeAlias = Callable[[Any, BaseException | None], None]
"""Gets the value of a reference, an envelope, or the error."""


def run_step(step: Step) -> None:
    """Run one callback of many: an error in it is printed, and does not affect the others."""
    try:
        step()
    except Exception:  # noqa: BLE001 - a defect of ours, to be found in the log of the agent's job
        traceback.print_exc()


class Ray(Protocol):
    """The part of the module ``ray`` that the poller uses."""

    def wait(self, refs: list[Any], *, num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]: ...
    def get(self, refs: Any) -> Any: ...


@dataclass(slots=True)
class _Polled:
    ref: Any
    on_result: OnResult
    polls: int = 0


class ResultPoller:
    """Polls many references at once. Not thread-safe. ``watch`` takes those that need a callback of their own."""

    def __init__(self, ray: Ray, watch: Callable[[Any, OnResult], None]) -> None:
        self._ray, self._watch = ray, watch
        self._queue: deque[_Polled] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, ref: Any, on_result: OnResult) -> None:
        self._queue.append(_Polled(ref, on_result))

    def poll(self) -> None:
        """Call back for the results that are ready. A callback may add others."""
        window = [self._queue.popleft() for _ in range(min(WINDOW, len(self._queue)))]
        if not window:
            return
        try:
            done, _ = self._ray.wait([one.ref for one in window], num_returns=len(window), timeout=0)
            values = self._fetch(done)
        except Exception as error:  # noqa: BLE001 - a request for each result alone may succeed
            print(f"rmcs agent: polling {len(window)} results failed ({error!r}); each is watched alone", flush=True)
            for one in window:
                self._watch(one.ref, one.on_result)
            return
        results = dict(zip(done, values, strict=True))
        for one in reversed(window):
            if one.ref not in results:
                self._poll_again(one)
        for one in window:
            if one.ref in results:
                run_step(partial(one.on_result, *results[one.ref]))

    def _poll_again(self, one: _Polled) -> None:
        one.polls += 1
        if one.polls < MAX_POLLS:
            self._queue.appendleft(one)
        else:
            self._watch(one.ref, one.on_result)

    def _fetch(self, refs: Sequence[Any]) -> list[tuple[Any, BaseException | None]]:
        try:
            return [(value, None) for value in self._ray.get(list(refs))]
        except Exception:  # noqa: BLE001 - one of the results is an error: find out which
            return [self._fetch_one(ref) for ref in refs]

    def _fetch_one(self, ref: Any) -> tuple[Any, BaseException | None]:
        try:
            return self._ray.get(ref), None
        except Exception as error:  # noqa: BLE001 - this is its result
            return None, error


class RayThreads:
    """``wake`` is called on any thread when :meth:`drain` has work; ``schedule_poll`` is called on the loop when
    :meth:`poll` is due after a pause."""

    def __init__(self, wake: Step, schedule_poll: Step) -> None:
        import ray  # noqa: PLC0415 - the poller alone works without it

        self._wake, self._schedule_poll = wake, schedule_poll
        self._poller = ResultPoller(ray, self.watch)
        self._for_loop: deque[Step] = deque()
        self._pool = ThreadPoolExecutor(8, thread_name_prefix="rmcs-pool")
        self._ordered = ThreadPoolExecutor(1, thread_name_prefix="rmcs-ordered")

    def run_in_pool(self, work: Callable[..., Any], *args: Any) -> Future[Any]:
        """Run it on some thread, in no order."""
        return self._pool.submit(work, *args)

    def run_in_order(self, work: Callable[..., object], *args: Any) -> None:
        """Run it on one thread, in the order of the calls. Must not raise."""
        self._ordered.submit(work, *args)

    def run_on_loop(self, step: Callable[..., object], *args: Any) -> None:
        """From any thread: run it on the event loop."""
        self._for_loop.append(partial(step, *args))
        self._wake()

    def watch(self, ref: Any, on_result: OnResult) -> None:
        """Call back on the loop when the reference has a value or an error."""
        ref.future().add_done_callback(lambda future: self._completed(future, on_result))

    def watch_in_batch(self, ref: Any, on_result: OnResult) -> None:
        """The same for one of many short calls. Only on the loop."""
        self._poller.add(ref, on_result)
        self._schedule_poll()

    def poll(self) -> None:
        """On the loop: call back for the short calls that are done."""
        self._poller.poll()
        if self._poller:
            self._schedule_poll()

    def drain(self) -> None:
        """On the loop: run what threads gave to :meth:`run_on_loop`."""
        while self._for_loop:
            run_step(self._for_loop.popleft())

    def _completed(self, future: Future[Any], on_result: OnResult) -> None:
        error = future.exception()
        value = None if error is not None else future.result()
        self.run_on_loop(on_result, value, error)
