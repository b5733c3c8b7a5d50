"""`rmcs up` and `rmcs down`: a service that many programs share."""

from __future__ import annotations

import math
import os
import signal
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ray_multicluster_scheduler.cli.arguments.options import Config, StateFolder
from ray_multicluster_scheduler.cli.exit_codes import INTERRUPTED
from ray_multicluster_scheduler.cli.layout.output import Format, Output, emit, say
from ray_multicluster_scheduler.cli.terminal.stderr_messages import to_stderr

if TYPE_CHECKING:
    from ray_multicluster_scheduler.cli.service.drain_progress import Draining
    from ray_multicluster_scheduler.common.exception import SchedulerError

STOP_PATIENCE_S = 30.0


class Auth(StrEnum):
    token = "token"  # nosec B105 # the name of a way to ask, no token
    none = "none"


def up(
    config: Config = None,
    state: StateFolder = None,
    host: Annotated[
        str, typer.Option("--host", help="Where it listens; beyond this machine only with TLS.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Where it listens; 0 takes a free one.")] = 8000,
    drain: Annotated[
        float | None,
        typer.Option(
            "--drain", min=0, help="When it is stopped, first wait at most so many seconds for what is not over."
        ),
    ] = None,
    auth: Annotated[
        Auth | None, typer.Option("--auth", help="`none` asks nobody for a token; on this machine only.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option("--tls-cert", help="Its certificate, in PEM.")] = None,
    tls_key: Annotated[
        Path | None, typer.Option("--tls-key", help="The key of that, in PEM, without a password.")
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option("--allow-host", help="A name by which it is reached; may be repeated.")
    ] = None,
    moved: Annotated[
        list[str] | None,
        typer.Option(
            "--moved",
            help="A cluster whose address was changed since: a job that it does not know is dead; may be repeated.",
        ),
    ] = None,
) -> None:
    """Run a service until it is stopped.

    That is by Ctrl+C, SIGTERM or `rmcs down`. What was accepted is in the state folder before the caller has an answer.
    When the service is stopped or killed, running work goes on, and the next start on the same folder takes it up.
    """
    from ray_multicluster_scheduler.common.logging import configure, get_logger, is_configured, writes_json
    from ray_multicluster_scheduler.control_plane.admin_api.serve import listening_as, serve
    from ray_multicluster_scheduler.control_plane.config import load_config
    from ray_multicluster_scheduler.control_plane.config.config_warnings import doubts
    from ray_multicluster_scheduler.control_plane.config.home import rmcs_home

    os.umask(0o077)  # code and arguments of all users of the service are in its files
    if not is_configured():
        configure("INFO")
    found = load_config(config)
    for doubt in doubts(found.clusters):
        get_logger(__name__).warning("%s; what to do: %s", doubt.sentence, doubt.mend)
    serve(
        found,
        state or rmcs_home(),
        listening_as(
            found, host=host, port=port, auth=auth and str(auth), cert=tls_cert, key=tls_key, allow_hosts=allow_host
        ),
        drain_s=drain,
        moved=moved or (),
        say=get_logger(__name__).info if writes_json() else to_stderr,
    )


def down(
    state: StateFolder = None,
    timeout: Annotated[float, typer.Option("--timeout", min=0, help="Wait at most so many seconds for its end.")] = (
        STOP_PATIENCE_S
    ),
    drain: Annotated[
        float | None,
        typer.Option(
            "--drain",
            min=0,
            help="First let it take nothing new, and wait at most so many seconds for what is not over.",
        ),
    ] = None,
    away: Annotated[
        float,
        typer.Option("--away", min=0, max=7 * 86_400, help="Let what runs go on for so many seconds longer."),
    ] = 0.0,
    output: Output = Format.table,
) -> None:
    """Stop the service of a state folder.

    What runs goes on for lease_s (45 s), and the next `rmcs up` takes it up. Said again while it drains, it stops
    at once.
    """
    from ray_multicluster_scheduler.cli.service.drain_progress import Draining
    from ray_multicluster_scheduler.common.exception import ConfigurationError, SchedulerError
    from ray_multicluster_scheduler.control_plane.config.home import rmcs_home
    from ray_multicluster_scheduler.control_plane.store.state_folder import StopRequest, holder, request_stop

    if not math.isfinite(away) or not math.isfinite(drain or 0.0):
        raise ConfigurationError("--away and --drain are numbers of seconds.", next_step="for example --away 600")
    folder = state or rmcs_home()
    said = holder(folder)
    if said is None:
        raise ConfigurationError(f"No service runs on {folder}.", next_step="name its folder with --state or RMCS_HOME")
    if "pid" not in said:
        raise SchedulerError(f"The service on {folder} is just starting.", next_step="try again in a moment")
    pid, draining = int(said["pid"]), bool(said.get("draining"))
    patience_s = timeout + (0.0 if draining else drain or 0.0)
    if _signal(folder, pid, 0) and (drain is not None or away):
        request_stop(folder, pid, StopRequest(drain, away))
    try:
        there = _signal(folder, pid, signal.SIGTERM)
        if draining:
            say("the service is draining already; told a second time, it stops at once, whatever is not over")
        elif there and drain is not None:
            say(f"the service waits up to {drain:g} s for what is not over")
        waits = None if draining or drain is None else Draining(folder, said.get("address"), drain)
        _await_its_end(folder, pid, patience_s, waits)
    except KeyboardInterrupt:
        say(_goes_on(pid, None if draining else drain))
        raise typer.Exit(INTERRUPTED) from None
    say(f"the service (process {pid}) has stopped")
    emit({"state": str(folder), "process": pid, "address": said.get("address")}, output, lambda: str(folder))


def _signal(folder: Path, pid: int, number: int) -> bool:
    """False: it has ended meanwhile. Raises SchedulerError for a process of somebody else."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    except PermissionError as error:
        raise _not_ours(folder, pid) from error
    return True


def _not_ours(folder: Path, pid: int) -> SchedulerError:
    import psutil

    from ray_multicluster_scheduler.common.exception import SchedulerError

    try:
        whose = psutil.Process(pid).username()
    except psutil.Error:
        whose = "another user"
    return SchedulerError(
        f"The service on {folder} (process {pid}) was told nothing: it runs as {whose}, and you may not stop it.",
        next_step=f"let {whose} stop it, or root: `sudo rmcs down --state {folder}`",
    )


def _await_its_end(folder: Path, pid: int, patience_s: float, waits: Draining | None) -> None:
    """Meanwhile, what it waits for is shown. Raises SchedulerError if it takes too long."""
    from ray_multicluster_scheduler.cli.service.item_wait import Reason
    from ray_multicluster_scheduler.common.exception import SchedulerError
    from ray_multicluster_scheduler.control_plane.store.state_folder import holder

    deadline = time.monotonic() + patience_s
    with Reason() as reason:
        while (now := holder(folder)) is not None and now.get("pid", pid) == pid:
            if time.monotonic() > deadline:
                raise SchedulerError(
                    f"The service (process {pid}) was told to stop and is still there after {patience_s:g} s.",
                    next_step="wait longer, or read what it wrote to its stderr, where `rmcs up` was typed",
                )
            if waits is not None:
                reason.show(waits.words())
            time.sleep(0.05)  # the lock of a process is only given up by its end, of which nobody tells


def _goes_on(pid: int, drain: float | None) -> str:
    """What whoever does not wait for its end has to know."""
    who = f"the service (process {pid})"
    if drain is None:
        return f"{who} was told to stop, and does; `rmcs status` says whether it still answers"
    return (
        f"{who} goes on draining, and then stops, within {drain:g} s; look with `rmcs status`; "
        "`rmcs down` stops it at once"
    )
