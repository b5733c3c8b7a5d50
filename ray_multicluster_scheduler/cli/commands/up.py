"""`rmcs up` and `rmcs down`: start and stop a service that many programs share."""

from __future__ import annotations

import math
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Literal

import typer

from ray_multicluster_scheduler.cli.arguments.options import Config, StateFolder
from ray_multicluster_scheduler.cli.arguments.selectors import UNFINISHED, WAITING
from ray_multicluster_scheduler.cli.exit_codes import INTERRUPTED
from ray_multicluster_scheduler.cli.layout.output import Format, Output, ProgressLine, emit, notify, to_stderr
from ray_multicluster_scheduler.cli.service.client import Service, api_path
from ray_multicluster_scheduler.cli.service.item_wait import Deadline
from ray_multicluster_scheduler.common.exception import ConfigurationError, SchedulerError

STOP_TIMEOUT_S = 30.0
POLL_S = 1.0
_ANSWER_S = 2.0
_UNKNOWN = "unfinished items cannot be seen from here"


def up(
    config: Config = None,
    state: StateFolder = None,
    host: Annotated[
        str, typer.Option("--host", help="The address to listen on; other machines need TLS.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="The port to listen on; 0 takes a free one.")
    ] = 8000,
    drain: Annotated[
        float | None,
        typer.Option("--drain", min=0, help="When it is stopped, wait at most so many seconds for unfinished items."),
    ] = None,
    auth: Annotated[
        Literal["token", "none"] | None, typer.Option("--auth", help="`none` needs no token; on this machine only.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option("--tls-cert", help="Its certificate, in PEM.")] = None,
    tls_key: Annotated[
        Path | None, typer.Option("--tls-key", help="Its private key, in PEM, without a password.")
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option("--allow-host", help="A host name of the service; may be repeated.")
    ] = None,
    moved: Annotated[
        list[str] | None,
        typer.Option(
            "--moved", help="A cluster whose address has changed: jobs that it does not know are dead; may be repeated."
        ),
    ] = None,
) -> None:
    """Run a service until it is stopped.

    Ctrl+C, SIGTERM or `rmcs down` stop it. Accepted items are in the state folder before the caller has an answer. When
    the service is stopped or killed, running work continues, and the next start on the same folder takes it over.
    """
    from ray_multicluster_scheduler.common.logging import configure, get_logger, is_configured, writes_json
    from ray_multicluster_scheduler.control_plane.admin_api.serve import listen_address_of, serve
    from ray_multicluster_scheduler.control_plane.config import load_config
    from ray_multicluster_scheduler.control_plane.config.config_warnings import config_warnings
    from ray_multicluster_scheduler.control_plane.config.home import rmcs_home

    os.umask(0o077)  # its files contain code and arguments of all users
    if not is_configured():
        configure("INFO")
    found = load_config(config)
    for one in config_warnings(found.clusters):
        get_logger(__name__).warning("%s; what to do: %s", one.sentence, one.fix)
    serve(
        found,
        state or rmcs_home(),
        listen_address_of(found, host=host, port=port, auth=auth, cert=tls_cert, key=tls_key, allow_hosts=allow_host),
        drain_s=drain,
        moved=moved or (),
        say=get_logger(__name__).info if writes_json() else to_stderr,
    )


def down(
    state: StateFolder = None,
    timeout: Annotated[float, typer.Option("--timeout", min=0, help="Wait at most so many seconds for its end.")] = (
        STOP_TIMEOUT_S
    ),
    drain: Annotated[
        float | None,
        typer.Option(
            "--drain",
            min=0,
            help="First accept nothing new, and wait at most so many seconds for unfinished items.",
        ),
    ] = None,
    away: Annotated[
        float,
        typer.Option("--away", min=0, max=7 * 86_400, help="Let running items continue for so many seconds longer."),
    ] = 0.0,
    output: Output = Format.table,
) -> None:
    """Stop the service of a state folder.

    Running items continue for lease_s (45 s), and the next `rmcs up` takes them over. Repeated while it drains, it
    stops at once.
    """
    from ray_multicluster_scheduler.control_plane.config.home import rmcs_home
    from ray_multicluster_scheduler.control_plane.store.state_folder import StopRequest, holder, request_stop

    if not math.isfinite(away) or not math.isfinite(drain or 0.0):
        raise ConfigurationError("--away and --drain are numbers of seconds.", next_step="for example --away 600")
    folder = state or rmcs_home()
    running = holder(folder)
    if running is None:
        raise ConfigurationError(f"No service runs on {folder}.", next_step="name its folder with --state or RMCS_HOME")
    if "pid" not in running:
        raise SchedulerError(f"The service on {folder} is just starting.", next_step="try again in a moment")
    pid, draining = int(running["pid"]), bool(running.get("draining"))
    timeout_s = timeout + (0.0 if draining else drain or 0.0)
    if _signal(folder, pid, 0) and (drain is not None or away):
        request_stop(folder, pid, StopRequest(drain, away))
    try:
        alive = _signal(folder, pid, signal.SIGTERM)
        if draining:
            notify("the service is draining already; the second request stops it at once")
        elif alive and drain is not None:
            notify(f"the service waits up to {drain:g} s for unfinished items")
        progress = None if draining or drain is None else DrainProgress(folder, running.get("address"), drain)
        _wait_for_exit(folder, pid, timeout_s, progress)
    except KeyboardInterrupt:
        service = f"the service (process {pid})"
        if draining or drain is None:
            notify(f"{service}: stop requested; `rmcs status` shows whether it still answers")
        else:
            notify(
                f"{service} continues to drain, and then stops, within {drain:g} s; see `rmcs status`; "
                "`rmcs down` stops it at once"
            )
        raise typer.Exit(INTERRUPTED) from None
    notify(f"the service (process {pid}) has stopped")
    emit({"state": str(folder), "process": pid, "address": running.get("address")}, output, lambda: str(folder))


def _signal(folder: Path, pid: int, number: int) -> bool:
    """False: it has ended. Raises SchedulerError for a process of another user."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    except PermissionError as error:
        import psutil

        try:
            user = psutil.Process(pid).username()
        except psutil.Error:
            user = "another user"
        raise SchedulerError(
            f"The service on {folder} (process {pid}) was not stopped: it runs as {user}, and you may not stop it.",
            next_step=f"let {user} stop it, or root: `sudo rmcs down --state {folder}`",
        ) from error
    return True


def _wait_for_exit(folder: Path, pid: int, timeout_s: float, progress: DrainProgress | None) -> None:
    """Shows the progress of the drain. Raises SchedulerError if it takes too long."""
    from ray_multicluster_scheduler.control_plane.store.state_folder import holder

    deadline = time.monotonic() + timeout_s
    with ProgressLine() as line:
        while (now := holder(folder)) is not None and now.get("pid", pid) == pid:
            if time.monotonic() > deadline:
                raise SchedulerError(
                    f"The service (process {pid}) still runs {timeout_s:g} s after its stop was requested.",
                    next_step="wait longer, or read the log of `rmcs up` on its stderr",
                )
            if progress is not None:
                line.show(progress.text())
            time.sleep(0.05)  # a process releases its lock when it ends; there is no other notification


class DrainProgress:
    """The items that the draining service of this folder and address waits for, for at most ``drain_s`` from now on."""

    def __init__(self, folder: Path, address: str | None, drain_s: float) -> None:
        self._folder, self._address, self._until = folder, address, Deadline(drain_s)
        self._text, self._answered, self._asked_at = _UNKNOWN, False, -POLL_S

    def text(self) -> str:
        """One line. Asks the service every POLL_S; one that does not answer any more is stopping."""
        if time.monotonic() - self._asked_at >= POLL_S:
            self._text = self._poll()
            self._asked_at = time.monotonic()
        left = self._until.left() or 0.0
        return "the service stops" if not left or not self._text else f"{self._text}; at most {left:.0f} s more"

    def _poll(self) -> str:
        """Empty: it is not waiting for anything."""
        if self._address is None:
            return _UNKNOWN
        from ray_multicluster_scheduler.app.client_api.remote.credentials import find_credentials

        try:  # with the token of that folder, unless another one was given
            credentials = find_credentials(self._address, {**os.environ, "RMCS_HOME": str(self._folder)})
            text = _unfinished(Service(self._address, credentials, _ANSWER_S))
        except SchedulerError:
            return "" if self._answered else _UNKNOWN
        self._answered = True
        return text


def _unfinished(service: Service) -> str:
    """Numbers of unfinished items per cluster, and of waiting items; without actors, which a drain does not wait
    for."""
    queue = service.get(api_path("queue"), limit=1)
    placed = set(UNFINISHED) - set(WAITING)
    actors = Counter(str(row["cluster"]) for row in service.get(api_path("actors"))["actors"] if row["state"] in placed)
    rows = service.get(api_path("clusters"))["clusters"]
    counts = {str(row["name"]): int(row["items"] or 0) - actors[str(row["name"])] for row in rows}
    waiting = int(queue["depth"]) - int(queue["kinds"].get("actor", 0))
    parts = [f"{count} on {name}" for name, count in counts.items() if count > 0]
    parts += [f"{waiting} waiting"] if waiting > 0 else []
    return f"unfinished: {', '.join(parts)}" if parts else ""
