"""serve(): runs a service in the foreground of this process until a signal stops it (``rmcs up``)."""

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
from typing import Any

from ray_multicluster_scheduler.common.exception import StoreError
from ray_multicluster_scheduler.common.logging import ROOT, batched_lines, get_logger
from ray_multicluster_scheduler.common.process import reduce_gc
from ray_multicluster_scheduler.control_plane.admin_api.access.access import Access
from ray_multicluster_scheduler.control_plane.admin_api.access.tokens import TokenStore, ensure_first_token
from ray_multicluster_scheduler.control_plane.admin_api.http.app import create_app
from ray_multicluster_scheduler.control_plane.admin_api.http.http_server import (
    http_server,
    listen,
    possible_connections,
)
from ray_multicluster_scheduler.control_plane.admin_api.http.listen_address import ListenAddress
from ray_multicluster_scheduler.control_plane.admin_api.http.uvicorn_protocols import HttpLimits
from ray_multicluster_scheduler.control_plane.config import FleetConfig
from ray_multicluster_scheduler.control_plane.config.home import expanded
from ray_multicluster_scheduler.control_plane.runtime.item import wait_for
from ray_multicluster_scheduler.control_plane.runtime.pools import check_stored_pools
from ray_multicluster_scheduler.control_plane.runtime.service.address_changes import check_moved, store_addresses
from ray_multicluster_scheduler.control_plane.runtime.service.retention import Retention
from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import ServiceRuntime
from ray_multicluster_scheduler.control_plane.store import SqliteStore
from ray_multicluster_scheduler.control_plane.store.state_folder import StateFolder, StopRequest

_log = get_logger(__name__)


def serve(
    config: FleetConfig,
    folder: Path,
    listening: ListenAddress | None = None,
    *,
    drain_s: float | None = None,
    moved: Collection[str] = (),
    say: Callable[[str], object] = print,
) -> None:
    """Serve until SIGTERM or SIGINT, then park: work in the clusters continues for the next process. With ``drain_s``
    first wait up to so long for unfinished items. ``listening`` defaults to the settings; for ``moved`` see
    :func:`check_moved`.

    Raises ConfigurationError if another process uses the folder, or for jobs at an old address of their cluster, and
    StoreError if the store cannot be used.
    """
    listening = listening or listen_address_of(config)
    for name in ("uvicorn.error", "asyncio", "opentelemetry"):
        _forward_log(name)
    with batched_lines(), StateFolder(folder) as state:
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
                check_stored_pools(store, config.pools)
                store_addresses(store, config.clusters)
                access, made = _access(config, store, folder, listening, say)
                runtime = ServiceRuntime(config, store)
                if made is not None:
                    runtime.call_soon(runtime.audit, getpass.getuser(), None, "first token", made)
                away_s = 0.0
                try:
                    away_s = _serve(runtime, access, listening, listener, state, drain_s, say)
                finally:
                    extended = runtime.park(away_s)
                    if away_s:
                        kept = f"{', '.join(extended)}: its work continues for {away_s:g} s longer than lease_s"
                        failed = "no cluster could extend its lease: work there ends after lease_s"
                        say(f"rmcs: {kept if extended else failed}")
            finally:
                store.close()


def listen_address_of(config: FleetConfig, **overrides: Any) -> ListenAddress:
    """The listen address of the settings, with the ``overrides`` that are not None. Raises ConfigurationError."""
    values: dict[str, Any] = {"auth": config.settings.auth}
    if config.settings.service_tls is not None:
        tls = config.settings.service_tls
        values.update(cert=expanded(tls.cert, "service_tls"), key=expanded(tls.key, "service_tls"))
    return ListenAddress(**{**values, **{name: value for name, value in overrides.items() if value is not None}})


def _access(
    config: FleetConfig, store: SqliteStore, folder: Path, listening: ListenAddress, say: Callable[[str], object]
) -> tuple[Access, str | None]:
    """Access control, and the id of the first token if it was created now. Raises ConfigurationError."""
    tokens = made = None
    if listening.auth == "token":
        tokens = TokenStore(store)
        message = ensure_first_token(tokens, folder, getpass.getuser())
        if message is not None:
            made = str(tokens.list()[-1]["id"])
            say(f"rmcs: {message}")
    else:
        say("rmcs: no token is required (auth: none): every user of this machine can run code on your clusters")
    return Access(tokens, listening.names, config.settings.cors_origins, listening.secure), made


def _serve(
    runtime: ServiceRuntime,
    access: Access,
    listening: ListenAddress,
    listener: socket.socket,
    state: StateFolder,
    drain_s: float | None,
    say: Callable[[str], object],
) -> float:
    """Returns by how much longer than usual the next start may be delayed."""
    stop, address = _StopSignal(), listening.address(listener.getsockname()[1])
    app = create_app(runtime, access)
    limits = HttpLimits(connections=possible_connections(runtime.config.settings.max_connections))
    server = http_server(app, limits=limits, cert=listening.cert, key=listening.key)
    retention = Retention(
        runtime.store,
        runtime.config.settings,
        runtime.clock,
        needed=runtime.stored_arguments.needed,
        release_values=runtime.release_values_older_than,
    )
    runtime.when_failed = stop.set
    stop.on_hang_up = lambda: runtime.call_soon(app.state.fleet_changes.reload_soon)
    reduce_gc()
    with stop:
        serving = runtime.start(server.serve(sockets=[listener]))
        retention.start()
        try:
            about = {"address": address, "control_plane": runtime.control_plane}
            state.announce(**about)
            say(f"rmcs: {address} is ready; its state is in {state.path} (process {os.getpid()})")
            stop.wait()
            stop.clear()  # first, so that a stop request or a failure from here on is not lost
            request = state.stop_request()
            drain_s = drain_s if request.drain_s is None else request.drain_s
            if drain_s is not None and runtime.failure is None:
                state.announce(**about, draining=True)
                _drain(runtime, drain_s, stop, say)
                later = state.stop_request()  # made while it drained
                request = StopRequest(away_s=later.away_s or request.away_s)
        finally:
            retention.stop()
            runtime.call_soon(runtime.stop_acknowledging)
            runtime.call_soon(app.state.mailboxes.close)
            runtime.call_soon(runtime.event_publisher.close)
            server.should_exit = True
            serving.result()
            runtime.run(app.state.deployments.close())
            runtime.run(app.state.serving.close_async())
    if runtime.failure is not None:
        raise StoreError(f"The service {runtime.failure}.", next_step="fix that and start it again; no work is lost")
    left = len(runtime.unfinished())
    say(
        f"rmcs: stopped; {left} item{'s' if left != 1 else ''} unfinished"
        + (", which the next start continues" if left else "")
    )
    return request.away_s


def _drain(runtime: ServiceRuntime, limit_s: float, stop: _StopSignal, say: Callable[[str], object]) -> None:
    runtime.refuse("is draining and accepts no new work")
    waiting = [item for item in runtime.unfinished() if not item.task.runs_actors]  # an actor does not end by itself
    if not waiting:
        return
    say(f"rmcs: draining: {len(waiting)} items are unfinished; at most {limit_s:g} s (repeat to stop at once)")

    def end() -> None:
        if wait_for(waiting, len(waiting), limit_s):
            stop.set()

    threading.Thread(target=end, name="rmcs-drain", daemon=True).start()
    stop.wait(limit_s)


class _StopSignal:
    """Set by SIGTERM and SIGINT while it is entered; SIGHUP calls ``on_hang_up``. Not a threading.Event: a signal
    handler that sets it could deadlock with a wait() on the same thread, which holds the event's lock."""

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

    def __enter__(self) -> _StopSignal:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, lambda *_: self.set())
            self._before[signal.SIGHUP] = signal.signal(signal.SIGHUP, lambda *_: self.on_hang_up())
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def _forward_log(name: str) -> None:
    """Write warnings of another library to our own log."""
    library = logging.getLogger(name)
    library.parent, library.propagate = logging.getLogger(ROOT), True
    library.setLevel(logging.WARNING)
