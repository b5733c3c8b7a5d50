"""FleetExecutor: the fleet as a concurrent.futures.Executor."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import Executor, Future
from concurrent.futures import wait as wait_for
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack

from ray_multicluster_scheduler.app.client_api import where
from ray_multicluster_scheduler.app.client_api.executor.chunk_size import BalancedSize, ChunkSizer, FixedSize
from ray_multicluster_scheduler.app.client_api.executor.chunked_map import RESERVE, ChunkedMap
from ray_multicluster_scheduler.app.client_api.executor.errands import Errands
from ray_multicluster_scheduler.app.client_api.executor.executor_calls import CallOptions, ChunkCalls
from ray_multicluster_scheduler.app.client_api.executor.fleet_future import FleetFuture
from ray_multicluster_scheduler.app.client_api.executor.map_results import MapResults

if TYPE_CHECKING:
    from ray_multicluster_scheduler.app.client_api.embedded.embedded_scheduler import UnifiedScheduler
    from ray_multicluster_scheduler.app.client_api.options import ItemOptions

T = TypeVar("T")
P = ParamSpec("P")


class FleetExecutor(Executor):
    """Runs calls on the clusters of a scheduler (None: the shared one, taken when it is first needed).

    ``resource_requirements``, ``tags`` and ``options`` are those of ``submit_task_async`` and hold for every call;
    there is no ``idempotency_key``, which means one item. Safe from any thread; the preferred cluster of the thread or
    asyncio task that calls is carried. Its shutdown does not end the scheduler. Raises ConfigurationError for wrong
    options.
    """

    def __init__(
        self,
        scheduler: UnifiedScheduler | None = None,
        *,
        resource_requirements: Mapping[str, Any] | None = None,
        tags: Sequence[str] | None = None,
        **options: Unpack[ItemOptions],
    ) -> None:
        self._given = scheduler
        self._options = CallOptions(resource_requirements, tags, options)
        self._options.check(scheduler)
        # Held for moments only: what is pickled may be large, and a scheduler takes its time to start.
        self._changed = threading.Condition()
        self._shut_down = self._withdrawing = False
        self._entering = 0
        """Calls of submit and map that are in there now."""
        self._errands = Errands("rmcs-executor")
        self._pending: set[FleetFuture[Any]] = set()
        self._maps: weakref.WeakSet[ChunkedMap] = weakref.WeakSet()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> FleetFuture[T]:
        """Run ``fn(*args, **kwargs)`` on the best cluster. The future's result is its value, or what it raised.

        Raises RuntimeError after shutdown, TaskSubmissionError for what cannot be pickled.
        """
        with self._entry():
            handle = self._options.submit(self._scheduler(), fn, args, kwargs)
            future: FleetFuture[T] = FleetFuture(handle, self._errands)
            self._pending.add(future)
            Future.add_done_callback(future, self._pending.discard)  # ours: not among the callbacks of users
            if self._withdrawing:
                future.withdraw()
        return future

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int | None = None,
    ) -> MapResults[T]:
        """Call ``fn`` with the items of the iterables, many calls to one Ray task; the values come in order.

        ``chunksize`` calls go into a task; None packs by observed speed, so that each cluster gets as much as it can
        do. The input is read on a thread of its own, and only as far ahead as is needed: it may be endless. An error of
        the input is raised when its turn comes. ``next`` of what is returned raises TaskTimeoutError, a TimeoutError,
        for a result that is not there ``timeout`` seconds after this call.

        A task that dies is repeated from its first call (``crash_retries``, ``lost_retries``); a call that raises is
        repeated as a task of its own (``retries``). ``run_timeout`` counts for each call: a task of n calls has n
        times as long. Raises RuntimeError after shutdown, TaskSubmissionError if ``fn`` cannot be pickled, ValueError
        for a chunksize below 1.
        """
        sizer = _sizer(chunksize)
        source: Iterator[Any] = iter(iterables[0]) if len(iterables) == 1 else zip(*iterables, strict=False)
        lengths = [len(each) for each in iterables if isinstance(each, Sized)]
        with self._entry():
            scheduler = self._scheduler()
            calls = ChunkCalls(scheduler, self._options, fn, spread=len(iterables) != 1)
            work = ChunkedMap(calls, source, min(lengths, default=None), sizer, _reserve(scheduler))
            with self._changed:
                self._maps.add(work)
            if self._withdrawing:
                work.withdraw()
        return MapResults(work, timeout)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls; with ``wait`` return when those on the way are over. The scheduler goes on.

        With ``cancel_futures`` what was not sent to a cluster yet is withdrawn. A map reads and sends as far ahead as
        it would without a reader, which is waited for, and goes on as its results are read, also after this.
        """
        with self._changed:
            self._shut_down = True
            self._withdrawing = self._withdrawing or cancel_futures
            if wait:
                self._changed.wait_for(lambda: self._entering == 0)
            futures, maps = list(self._pending), list(self._maps)
        if cancel_futures:
            for future in futures:
                future.withdraw()
            for work in maps:
                work.withdraw()
        if wait:
            wait_for(futures)
            for work in maps:
                work.at_rest.wait()

    @contextmanager
    def _entry(self) -> Iterator[None]:
        """Around everything that sends something: it is refused after shutdown, which waits for it."""
        with self._changed:
            if self._shut_down:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._entering += 1
        try:
            yield
        finally:
            with self._changed:
                self._entering -= 1
                self._changed.notify_all()

    def _scheduler(self) -> UnifiedScheduler:
        return where.side() if self._given is None else self._given


def _sizer(chunksize: int | None) -> ChunkSizer:
    if chunksize is None:
        return BalancedSize()
    if chunksize < 1:
        raise ValueError(f"chunksize is {chunksize}; it must be at least 1, or None")
    return FixedSize(chunksize)


def _reserve(scheduler: UnifiedScheduler) -> int:
    """Inside of a cluster nobody sees what runs, so enough is sent for all of it."""
    if not where.inside():
        return RESERVE
    return max(RESERVE, 2 * int(scheduler.fleet_resources()["total"].get("CPU", 0)))
