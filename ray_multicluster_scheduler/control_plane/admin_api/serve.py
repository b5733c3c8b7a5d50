"""serve(): a service from its start to its end, in the foreground of one process."""

from __future__ import annotations

import getpass
import logging
import os
import queue
import signal
import socket
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from types import FrameType
from typing import Any

from ray_multicluster_scheduler.common.exception import StoreError
from ray_multicluster_scheduler.common.logging import ROOT, get_logger, lines_together
from ray_multicluster_scheduler.common.process import reduce_gc
from ray_multicluster_scheduler.control_plane.admin_api.access.access import Access
from ray_multicluster_scheduler.control_plane.admin_api.access.tokens import TokenStore, ensure_first_token
from ray_multicluster_scheduler.control_plane.admin_api.http.app import create_app
from ray_multicluster_scheduler.control_plane.admin_api.http.bounded_http import Bounds
from ray_multicluster_scheduler.control_plane.admin_api.http.http_server import (
    connections_in_reach,
    http_server,
    listen,
)
from ray_multicluster_scheduler.control_plane.admin_api.http.listen_address import Listening
from ray_multicluster_scheduler.control_plane.config import FleetConfig
from ray_multicluster_scheduler.control_plane.config.home import expanded
from ray_multicluster_scheduler.control_plane.runtime.item import wait_for
from ray_multicluster_scheduler.control_plane.runtime.service.address_changes import check_moved, note_places
from ray_multicluster_scheduler.control_plane.runtime.service.retention import Retention
from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import ServiceRuntime
from ray_multicluster_scheduler.control_plane.store import SqliteStore
from ray_multicluster_scheduler.control_plane.store.state_folder import StateFolder, StopRequest

_log = get_logger(__name__)


def serve(
    config: FleetConfig,
    folder: Path,
    listening: Listening | None = None,
    *,
    drain_s: float | None = None,
    moved: Collection[str] = (),
    say: Callable[[str], object] = print,
) -> None:
    """Until SIGTERM or SIGINT. Then everything is left running where it is, for the next process to go on with; with
    ``drain_s`` it first waits so long for what is not over. ``listening`` is by default as the settings say; for
    ``moved`` see :func:`check_moved`.

    Raises ConfigurationError for a folder that another one has and for jobs at an old address of their cluster,
    StoreError for a store that cannot be used.
    """
    listening = listening or listening_as(config)
    for name in ("uvicorn.error", "asyncio", "opentelemetry"):
        _log_as_we_do(name)
    with lines_together(), StateFolder(folder) as state:
        listener = listen(listening.host, listening.port)
        with listener:
            store = SqliteStore(
                folder,
                most_blob_bytes=config.settings.max_payload_bytes,
                quota_bytes=config.settings.payload_quota_bytes,
            )
            try:
                store.sweep_files()
                check_moved(store, config.clusters, moved)
                note_places(store, config.clusters)
                access, made = _access(config, store, folder, listening, say)
                runtime = ServiceRuntime(config, store)
                if made is not None:
                    runtime.soon(runtime.audit, getpass.getuser(), None, "first token", made)
                away_s = 0.0
                try:
                    away_s = _serve(runtime, access, listening, listener, state, drain_s, say)
                finally:
                    told = runtime.park(away_s)
                    if away_s:
                        say(_who_goes_on(told, away_s))
            finally:
                store.close()


def listening_as(config: FleetConfig, **given: Any) -> Listening:
    """Where the settings say, but for what is ``given``; None is not. Raises ConfigurationError."""
    said: dict[str, Any] = {"auth": config.settings.auth}
    if config.settings.service_tls is not None:
        tls = config.settings.service_tls
        said.update(cert=expanded(tls.cert, "service_tls"), key=expanded(tls.key, "service_tls"))
    return Listening(**{**said, **{name: value for name, value in given.items() if value is not None}})


def _access(
    config: FleetConfig, store: SqliteStore, folder: Path, listening: Listening, say: Callable[[str], object]
) -> tuple[Access, str | None]:
    """With a token in the folder, unless none is wanted, and its id if it was made just now. Raises
    ConfigurationError."""
    book = made = None
    if listening.auth == "token":
        book = TokenStore(store)
        news = ensure_first_token(book, folder, getpass.getuser())
        if news is not None:
            made = str(book.list()[-1]["id"])
            say(f"rmcs: {news}")
    else:
        say("rmcs: nobody is asked for a token (auth: none): every user of this machine can run code on your clusters")
    return Access(book, listening.names, config.settings.cors_origins, listening.secure), made


def _serve(
    runtime: ServiceRuntime,
    access: Access,
    listening: Listening,
    listener: socket.socket,
    state: StateFolder,
    drain_s: float | None,
    say: Callable[[str], object],
) -> float:
    """Returns how much later than usual the next start may come."""
    stop, address = _Stop(), listening.address(listener.getsockname()[1])
    app = create_app(runtime, access)
    bounds = Bounds(connections=connections_in_reach(runtime.config.settings.max_connections))
    server = http_server(app, bounds=bounds, cert=listening.cert, key=listening.key)
    retention = Retention(
        runtime.store,
        runtime.config.settings,
        runtime.clock,
        needed=runtime.stored_arguments.needed,
        let_go=runtime.release_values_older_than,
    )
    runtime.when_failed = stop.set
    stop.on_hang_up = lambda: runtime.soon(app.state.fleet_changes.reload_soon)
    reduce_gc()
    with stop:
        serving = runtime.start(server.serve(sockets=[listener]))
        retention.start()
        try:
            about = {"address": address, "control_plane": runtime.control_plane}
            state.announce(**about)
            say(f"rmcs: {address} is ready; its state is in {state.path} (process {os.getpid()})")
            stop.wait()
            # Before anybody can read that it drains, and before it is seen whether it failed: neither may be forgotten.
            stop.clear()
            asked = state.stop_request()
            drain_s = drain_s if asked.drain_s is None else asked.drain_s
            if drain_s is not None and runtime.failure is None:
                state.announce(**about, draining=True)
                _drain(runtime, drain_s, stop, say)
                asked = StopRequest(away_s=state.stop_request().away_s or asked.away_s)  # said while it drained
        finally:
            retention.stop()
            runtime.soon(runtime.acknowledge_no_more)
            runtime.soon(app.state.mailboxes.close)
            runtime.soon(runtime.event_publisher.close)
            server.should_exit = True
            serving.result()
    if runtime.failure is not None:
        raise StoreError(f"The service {runtime.failure}.", next_step="mend that and start it again: nothing is lost")
    left = len(runtime.unfinished())
    say(
        f"rmcs: stopped; {left} item{'s' if left != 1 else ''} not over"
        + (", which the next start takes up" if left else "")
    )
    return asked.away_s


def _who_goes_on(clusters: list[str], away_s: float) -> str:
    if not clusters:
        return "rmcs: no cluster was told to go on for longer; what runs there ends after lease_s"
    return f"rmcs: {', '.join(clusters)}: what runs there goes on for {away_s:g} s longer than lease_s"


def _drain(runtime: ServiceRuntime, limit_s: float, stop: _Stop, say: Callable[[str], object]) -> None:
    runtime.refuse("is draining and takes nothing new")
    waiting = [item for item in runtime.unfinished() if not item.task.runs_actors]  # an actor is not over by itself
    if not waiting:
        return
    say(f"rmcs: draining: {len(waiting)} items are not over; at most {limit_s:g} s (again to stop at once)")

    def end() -> None:
        if wait_for(waiting, len(waiting), limit_s):
            stop.set()

    threading.Thread(target=end, name="rmcs-drain", daemon=True).start()
    stop.wait(limit_s)


class _Stop:
    """Set by SIGTERM and SIGINT while it is entered; SIGHUP means something else, and ends nothing.

    Not an Event: a signal may come while its thread is just about to wait, and so has the lock that to set it takes.
    """

    def __init__(self) -> None:
        self.on_hang_up: Callable[[], object] = lambda: None
        self._asked: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._before: dict[int, Any] = {}

    def wait(self, timeout: float | None = None) -> bool:
        try:
            self._asked.get(timeout=timeout)
        except queue.Empty:
            return False
        return True

    def set(self) -> None:
        self._asked.put(None)

    def clear(self) -> None:
        while not self._asked.empty():
            self._asked.get()

    def __enter__(self) -> _Stop:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._hear)
            self._before[signal.SIGHUP] = signal.signal(signal.SIGHUP, lambda *_: self.on_hang_up())
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.set()


def _log_as_we_do(name: str) -> None:
    """What others in this process complain about goes where our own log goes, and is written as it is."""
    theirs = logging.getLogger(name)
    theirs.parent, theirs.propagate = logging.getLogger(ROOT), True
    theirs.setLevel(logging.WARNING)
