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
from ray_multicluster_scheduler.app.client_api.executor.chunked_map import RESERVE, ChunkedMap, MapResults
from ray_multicluster_scheduler.app.client_api.executor.executor_calls import CallOptions, ChunkCalls
from ray_multicluster_scheduler.app.client_api.executor.fleet_future import FleetFuture
from ray_multicluster_scheduler.app.client_api.handles.progress import begin
from ray_multicluster_scheduler.common.exception import ConfigurationError

if TYPE_CHECKING:
    from ray_multicluster_scheduler.app.client_api.options import ItemOptions
    from ray_multicluster_scheduler.app.client_api.scheduler import UnifiedScheduler

T = TypeVar("T")
P = ParamSpec("P")


class FleetExecutor(Executor):
    """Runs calls on the clusters of a scheduler (None: the shared one, looked up on first use).

    ``resource_requirements``, ``tags`` and ``options`` are those of ``submit_task_async`` and apply to every call;
    ``idempotency_key`` is not accepted, since it identifies one item. Thread-safe; a call uses the preferred cluster of
    the calling thread or asyncio task. Shutting it down does not shut down the scheduler. Raises ConfigurationError for
    invalid options.
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
        # Held only briefly: never while pickling or while a scheduler starts.
        self._changed = threading.Condition()
        self._shut_down = self._withdrawing = False
        self._entering = 0
        """Number of submit and map calls in progress."""
        self._worker = BackgroundWorker("rmcs-executor")
        self._pending: set[FleetFuture[Any]] = set()
        self._maps: weakref.WeakSet[ChunkedMap] = weakref.WeakSet()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> FleetFuture[T]:
        """Run ``fn(*args, **kwargs)`` on the best cluster. The future has its value, or the exception that it raised.

        Raises RuntimeError after shutdown, TaskSubmissionError for arguments that cannot be pickled.
        """
        with self._entry():
            handle = self._options.submit(self._scheduler(), fn, args, kwargs)
            future: FleetFuture[T] = FleetFuture(handle, self._worker)
            self._pending.add(future)
            Future.add_done_callback(future, self._pending.discard)  # bypasses the queue of user callbacks
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
        """Call ``fn`` with the items of the iterables, many calls per Ray task; results are in input order.

        ``chunksize`` is the number of calls per task; None packs by observed speed. The input is read on its own
        thread, only as far ahead as needed, so it may be infinite. Errors of the input and of calls are raised in their
        place in the results; after the error of a call, iteration can continue. ``next`` raises TaskTimeoutError (a
        TimeoutError) for a result that has not arrived ``timeout`` seconds after this call.

        A task that dies is repeated from its first call (``crash_retries``, ``lost_retries``); a call that raises is
        retried as its own task (``retries``). ``run_timeout`` applies per call: a task of n calls gets n times as long.
        Raises RuntimeError after shutdown, TaskSubmissionError if ``fn`` cannot be pickled, ValueError for a chunksize
        below 1, ConfigurationError for one that is not an integer.

        ``progress=True`` shows the number of finished calls as a bar on stderr (if it is a terminal) or in a notebook.
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
        """Accept no more calls; with ``wait`` return when those in progress are done. The scheduler keeps running.

        ``cancel_futures`` cancels the calls that were not sent to a cluster yet. Of a map, ``wait`` covers the calls
        that are sent ahead of its reader; it continues as its results are read, also after the shutdown.
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
        """Shut down and wait. After an exception queued calls of maps are cancelled, since their reader is gone."""
        if kind is not None:
            with self._changed:
                maps = list(self._maps)
            for work in maps:
                work.withdraw()
        self.shutdown(wait=True)

    @contextmanager
    def _entry(self) -> Iterator[None]:
        """Guard a submission: refuse it after shutdown, and let shutdown wait for it."""
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
            f"chunksize is {chunksize!r}.", next_step="use an integer of at least 1, or None to pack by speed"
        ) from None
    if size < 1:
        raise ValueError(f"chunksize is {size}; it must be at least 1, or None")
    return FixedSize(size)


def _check_scheduler(scheduler: object, options: Mapping[str, Any]) -> None:
    """Reject a wrong first argument and ``max_workers``, habits from other executors. Raises ConfigurationError."""
    wrong = scheduler is not None and not hasattr(scheduler, "submit_task_async")
    if wrong or "max_workers" in options:
        what = repr(scheduler) if wrong else f"max_workers={options['max_workers']!r}"
        raise ConfigurationError(
            f"FleetExecutor does not accept {what}.",
            next_step="pass a UnifiedScheduler, or None for the shared one; the size of the fleet determines how "
            "much runs at once",
        )


def _reserve(scheduler: UnifiedScheduler) -> int:
    """Number of chunks to keep queued. Inside a cluster running chunks are not visible, so fill all of its CPUs."""
    if not execution_context.inside():
        return RESERVE
    return max(RESERVE, 2 * int(scheduler.fleet_resources()["total"].get("CPU", 0)))
