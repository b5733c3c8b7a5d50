"""What runs around a user's function, in the worker process.

It reports who, where and when, keeps the function by its digest, catches what the function prints and
raises, and always answers with an envelope: Ray sees an error only when the process itself died.
"""

from __future__ import annotations

import io
import sys
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import ray

from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.current_item import CurrentItem, set_current
from ray_multicluster_scheduler.common.home_paths import move_home_paths
from ray_multicluster_scheduler.scheduler.connection.gateway.channel import (
    Line,
    NoLease,
    Running,
    WorkerChannel,
    channel_for,
)
from ray_multicluster_scheduler.scheduler.connection.gateway.envelope import pack

Homes: TypeAlias = tuple[list[str], str] | None
"""Home directories of others, and the one that arguments under them are moved to."""

_KEPT_FUNCTIONS = 128
_functions: OrderedDict[str, Callable[..., Any]] = OrderedDict()
_MAX_TEXT = 20_000


def run_call(line: Line, item: CurrentItem, homes: Homes, digest: str, function: bytes, arguments: bytes) -> bytes:
    """One attempt of one task. Returns an envelope, whatever happens to the user's code."""
    channel = channel_for(line)
    node_id = ray.get_runtime_context().get_node_id()
    try:
        running = channel.begin(item.id, item.attempt, node_id)
    except NoLease as error:
        return pack({**_failed("crash", error, f"node {node_id}: {error}"), "code": "AGENT_UNREACHABLE"})
    set_current(item)
    head: dict[str, Any] = {"at": running.started_at, "node": running.node_id}
    payload = b""
    try:
        with _captured(channel, running):
            outcome, payload = _call(homes, digest, function, arguments)
        head |= outcome
    except KeyboardInterrupt:
        # This is how ray.cancel() arrives.
        head |= {"status": "cancelled"}
    finally:
        set_current(None)
        rest = channel.end(running)
    head |= {"took": time.monotonic() - running.began, "parts": rest, "chunks": running.chunks}
    if running.dropped:
        head["dropped"] = running.dropped
    return pack(head, payload)


def _call(homes: Homes, digest: str, function: bytes, arguments: bytes) -> tuple[dict[str, Any], bytes]:
    try:
        target = _load(digest, function)
        args, kwargs = pickling.loads(arguments)
        if homes is not None:
            (args, kwargs), _ = move_home_paths((args, kwargs), *homes)
    except Exception as error:  # noqa: BLE001 - unpickling runs arbitrary code; all of it is reported
        return _not_loadable(error), b""
    try:
        value = target(*args, **kwargs)
    except KeyboardInterrupt:
        raise
    except SystemExit as error:
        return _failed("user", error, f"the task called sys.exit({error.code!r})"), b""
    except BaseException as error:  # noqa: BLE001 - the user's exception is the answer
        if error.__traceback__ is not None:
            error.__traceback__ = error.__traceback__.tb_next  # without this frame of ours
        return _user_error(error)
    try:
        return {"status": "succeeded"}, pickling.dumps(value)
    except Exception as error:  # noqa: BLE001 - pickling runs arbitrary code; all of it is reported
        sentence = f"the task's result, a {type(value).__qualname__}, cannot be pickled: {error}"
        return {**_failed("permanent", error, sentence), "code": "RESULT_NOT_PICKLABLE"}, b""


def _load(digest: str, function: bytes) -> Callable[..., Any]:
    target = _functions.get(digest)
    if target is None:
        target = _functions[digest] = pickling.loads(function)
        if len(_functions) > _KEPT_FUNCTIONS:
            _functions.popitem(last=False)
    return target


def _not_loadable(error: Exception) -> dict[str, Any]:
    if isinstance(error, ModuleNotFoundError) and error.name:
        sentence = (
            f"the module {error.name!r} cannot be found on the cluster; pass it with "
            f"runtime_env={{'py_modules': [...]}} or {{'working_dir': ...}}, or install it there "
            f"(for example runtime_env={{'pip': [{error.name.partition('.')[0]!r}]}})"
        )
        return {**_failed("permanent", error, sentence), "code": "MODULE_NOT_FOUND"}
    sentence = f"the function or its arguments cannot be loaded on the cluster: {type(error).__name__}: {error}"
    return {**_failed("permanent", error, sentence), "code": "NOT_LOADABLE"}


def _user_error(error: BaseException) -> tuple[dict[str, Any], bytes]:
    head = _failed("user", error, f"{type(error).__name__}: {_text(error)}")
    try:
        return head, pickling.dumps(error.with_traceback(None))
    except Exception as problem:  # noqa: BLE001 - the text of the error is kept instead
        head["message"] += f" (the exception itself cannot be pickled: {problem})"
        return head, b""


def _failed(failure: str, error: BaseException, sentence: str) -> dict[str, Any]:
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return {
        "status": "failed",
        "failure": failure,
        "error_type": type(error).__name__,
        "message": sentence[:_MAX_TEXT],
        "traceback": text[-_MAX_TEXT:],
    }


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as problem:  # noqa: BLE001 - a broken __str__ must not hide the error
        return f"<its text cannot be had: {problem}>"


@contextmanager
def _captured(channel: WorkerChannel, running: Running) -> Iterator[None]:
    """Send what Python code prints to the channel as well as to the worker's own log."""
    before = sys.stdout, sys.stderr
    sys.stdout = _Tee(before[0], lambda text: channel.write(running, "stdout", text))
    sys.stderr = _Tee(before[1], lambda text: channel.write(running, "stderr", text))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


class _Tee(io.TextIOBase):
    """A text stream that also tells somebody else what was written.

    Everything else that a program may want of its standard output (``buffer``, ``reconfigure`` …) is the original's;
    what is written past this stream is in the worker's own log only.
    """

    def __init__(self, original: Any, tell: Callable[[str], None]) -> None:
        self._original = original
        self._tell = tell

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def write(self, text: str) -> int:
        self._tell(text)
        self._original.write(text)
        return len(text)

    def flush(self) -> None:
        self._original.flush()

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        number: int = self._original.fileno()
        return number

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a plain attribute there; here it follows the original's
        return str(getattr(self._original, "encoding", "utf-8"))

    def writable(self) -> bool:
        return True
