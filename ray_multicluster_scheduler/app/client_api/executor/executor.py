"""FleetExecutor: the fleet as a concurrent.futures.Executor."""

from __future__ import annotations

import operator
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import Executor, Future
from concurrent.futures import wait as wait_for
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack

from ray_multicluster_scheduler.app.client_api import execution_context
from ray_multicluster_scheduler.app.client_api.executor.background_worker import BackgroundWorker
from ray_multicluster_scheduler.app.client_api.executor.chunk_size import BalancedSize, ChunkSizer, FixedSize
from ray_multicluster_scheduler.app.client_api.executor.chunked_map import RESERVE, ChunkedMap
from ray_multicluster_scheduler.app.client_api.executor.executor_calls import CallOptions, ChunkCalls
from ray_multicluster_scheduler.app.client_api.executor.fleet_future import FleetFuture
from ray_multicluster_scheduler.app.client_api.executor.map_results import MapResults
from ray_multicluster_scheduler.app.client_api.handles.progress import begin
from ray_multicluster_scheduler.common.exception import ConfigurationError

if TYPE_CHECKING:
    from ray_multicluster_scheduler.app.client_api.options import ItemOptions
    from ray_multicluster_scheduler.app.client_api.scheduler import UnifiedScheduler

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
        _check_scheduler(scheduler, options)
        self._given = scheduler
        self._options = CallOptions(resource_requirements, tags, options)
        self._options.check(scheduler)
        # Held for moments only: what is pickled may be large, and a scheduler takes its time to start.
        self._changed = threading.Condition()
        self._shut_down = self._withdrawing = False
        self._entering = 0
        """Calls of submit and map that are in there now."""
        self._worker = BackgroundWorker("rmcs-executor")
        self._pending: set[FleetFuture[Any]] = set()
        self._maps: weakref.WeakSet[ChunkedMap] = weakref.WeakSet()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> FleetFuture[T]:
        """Run ``fn(*args, **kwargs)`` on the best cluster. The future's result is its value, or what it raised.

        Raises RuntimeError after shutdown, TaskSubmissionError for what cannot be pickled.
        """
        with self._entry():
            handle = self._options.submit(self._scheduler(), fn, args, kwargs)
            future: FleetFuture[T] = FleetFuture(handle, self._worker)
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
        progress: bool | None = None,
    ) -> MapResults[T]:
        """Call ``fn`` with the items of the iterables, many calls to one Ray task; the values come in order.

        ``chunksize`` calls go into a task; None packs by observed speed, so that each cluster gets as much as it can
        do. The input is read on a thread of its own, and only as far ahead as is needed: it may be endless. An error of
        the input is raised when its turn comes. ``next`` of what is returned raises TaskTimeoutError, a TimeoutError,
        for a result that is not there ``timeout`` seconds after this call. The error of a call is raised when its turn
        comes and does not end the map: whoever goes on reading gets the rest.

        A task that dies is repeated from its first call (``crash_retries``, ``lost_retries``); a call that raises is
        repeated as a task of its own (``retries``). ``run_timeout`` counts for each call: a task of n calls has n
        times as long. Raises RuntimeError after shutdown, TaskSubmissionError if ``fn`` cannot be pickled, ValueError
        for a chunksize below 1, ConfigurationError for one that is no whole number.

        ``progress=True`` shows a bar on stderr, where that is a terminal, and in notebooks: how many calls are over.
        """
        sizer = _sizer(chunksize)
        source: Iterator[Any] = iter(iterables[0]) if len(iterables) == 1 else zip(*iterables, strict=False)
        lengths = [len(each) for each in iterables if isinstance(each, Sized)]
        with self._entry():
            scheduler = self._scheduler()
            calls = ChunkCalls(scheduler, self._options, fn, spread=len(iterables) != 1)
            length = min(lengths, default=None)
            bar = begin(progress, "map", length)
            work = ChunkedMap(calls, source, length, sizer, _reserve(scheduler), bar)
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

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Shut down and wait. After an exception nobody reads the maps to their end: what they have not sent, or what
        waits, is withdrawn, and only what runs is waited for."""
        if kind is not None:
            with self._changed:
                maps = list(self._maps)
            for work in maps:
                work.withdraw()
        self.shutdown(wait=True)

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
        return execution_context.active_scheduler() if self._given is None else self._given


def _sizer(chunksize: int | None) -> ChunkSizer:
    if chunksize is None:
        return BalancedSize()
    try:
        size = operator.index(chunksize)
    except TypeError:
        raise ConfigurationError(
            f"chunksize is {chunksize!r}.", next_step="give a whole number of at least 1, or None to pack by speed"
        ) from None
    if size < 1:
        raise ValueError(f"chunksize is {size}; it must be at least 1, or None")
    return FixedSize(size)


def _check_scheduler(scheduler: object, options: Mapping[str, Any]) -> None:
    """Other executors are told first how much to run at once. Raises ConfigurationError."""
    wrong = scheduler is not None and not hasattr(scheduler, "submit_task_async")
    if wrong or "max_workers" in options:
        what = f"{scheduler!r}, which is not a scheduler" if wrong else f"max_workers={options['max_workers']!r}"
        raise ConfigurationError(
            f"FleetExecutor was given {what}.",
            next_step="give a UnifiedScheduler, or nothing for the shared one; the fleet's size decides how much runs "
            "at once",
        )


def _reserve(scheduler: UnifiedScheduler) -> int:
    """Inside of a cluster nobody sees what runs, so enough is sent for all of it."""
    if not execution_context.inside():
        return RESERVE
    return max(RESERVE, 2 * int(scheduler.fleet_resources()["total"].get("CPU", 0)))
