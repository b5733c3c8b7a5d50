"""`rmcs job`: the commands of `ray job`, for the whole fleet."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from ray_multicluster_scheduler.cli import exit_codes
from ray_multicluster_scheduler.cli.arguments.lazy_group import LazyCommand, LazyGroup
from ray_multicluster_scheduler.cli.arguments.options import (
    Follow,
    JobService,
    Limit,
    Tail,
    item_argument,
    with_ray_options,
)
from ray_multicluster_scheduler.cli.arguments.selectors import find_item
from ray_multicluster_scheduler.cli.layout.item_tables import jobs_table
from ray_multicluster_scheduler.cli.layout.output import Format, Output, emit, emit_list, notify
from ray_multicluster_scheduler.cli.service.client import Service, api_path
from ray_multicluster_scheduler.cli.service.item_wait import print_log, wait_until
from ray_multicluster_scheduler.cli.service.items import item_details
from ray_multicluster_scheduler.common.exception import ClusterConnectionError, SchedulerError


class Group(LazyGroup):
    """Imports `submit` only when it runs: its options take longer to define than the other commands run."""

    prefix = "job "
    lazy_commands = {  # noqa: RUF012 - the base class declares it as a ClassVar
        # As `ray job submit python x.py --flag`, also without `--`: options behind the entrypoint belong to it.
        "submit": LazyCommand(
            "submit", "submit", "Submit a job; print its output until it has ended.", {"allow_interspersed_args": False}
        )
    }


app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Submit and manage Ray jobs, with the flags of `ray job`.",
)

STOP_TIMEOUT_S = 10.0
"""A running job usually takes 2 to 3 s to end."""
_LAST_LINES = 20
_LOG_FOLLOWS = re.compile(r",? *last available logs(?: \([^()]*\))?: *$")
"""Ray ends a message with this before the log; it is removed where no log is shown."""
_ENDED = {"SUCCEEDED": "succeeded", "FAILED": "failed", "STOPPED": "was stopped"}
_Job = Annotated[str, item_argument("job", "JOB_ID")]


@app.command()
@with_ray_options
def status(connection: JobService, job_id: _Job, output: Output = Format.table) -> None:
    """Show the status of a job.

    Of one that failed, also the end of its output. Exit code 0 if it succeeded, 100 if it failed, 101 if it is not
    over, 103 if it was stopped.
    """
    service = connection.service
    found = find_item(service, job_id, "job")
    info = service.get(api_path("jobs", found))
    log = _JobLog(service, found)
    emit(info, output, lambda: status_text(found, info, log.read))
    if output is Format.table and info["status"] == "FAILED":
        notify(hint_never_ran(service, found) if never_ran(info) else log.hint())
    raise typer.Exit(exit_codes.exit_code_of(info["status"]))


@app.command()
@with_ray_options
def logs(connection: JobService, job_id: _Job, follow_it: Follow = False, tail: Tail = None) -> None:
    """Print the output of a job.

    With --follow, the exit code is as of `rmcs job status`.
    """
    found = find_item(connection.service, job_id, "job")
    print_log(connection.service, found, until_over=follow_it, tail=tail, group="job")


@app.command()
@with_ray_options
def stop(
    connection: JobService,
    job_id: _Job,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Do not wait for its end.")] = False,
    timeout: Annotated[
        float | None, typer.Option("--timeout", min=0, help="Wait so many seconds for its end; default: 10.")
    ] = None,
    output: Output = Format.table,
) -> None:
    """Stop a job, queued or running.

    Exit code 0 when it has ended, 101 if it has not. The request takes effect at once and stays in effect. A job that
    Ray has not started yet ends only once it has.
    """
    service = connection.service
    found = find_item(service, job_id, "job")
    answer = service.change(api_path("items", found, "cancel"), {"reason": "stopped by `rmcs job stop`"})
    patience_s = STOP_TIMEOUT_S if timeout is None else timeout
    if not no_wait:
        wait_until(service, found, exit_codes.is_over, patience_s)
    info = service.get(api_path("jobs", found))
    over = exit_codes.is_over(info["status"])
    waited = "" if no_wait else f" after {patience_s:g} s: {unfinished_reason(info)}"
    if not answer["changed"]:
        notify(f"{found} has already ended: {info['status']}")
    else:
        state = info["status"]
        notify(f"{found} is {state}" if over else f"{found}: stop requested; it is {state}{waited}")
    emit(info, output, lambda: found)
    raise typer.Exit(exit_codes.OK if over or no_wait else exit_codes.NOT_FINISHED)


@app.command()
@with_ray_options
def delete(connection: JobService, job_id: _Job, output: Output = Format.table) -> None:
    """Delete an ended job, and its history.

    What Ray keeps of it in its cluster is not touched.
    """
    service = connection.service
    found = find_item(service, job_id, "job")
    answer = service.delete(api_path("items", found))
    notify(f"{found} is deleted")
    emit(answer, output, lambda: found)


@app.command("list")
@with_ray_options
def list_jobs(connection: JobService, limit: Limit = 50, output: Output = Format.table) -> None:
    """List jobs, newest first."""
    rows = connection.service.rows(api_path("jobs"), "jobs", limit)
    emit_list(rows, output, lambda rows: jobs_table(rows, time.time()), "no job is known", limit)


def unfinished_reason(info: Mapping[str, Any]) -> str:
    """Explains that a job has not ended although its stop was requested, and what to do."""
    again = f"see `rmcs job status {info['job_id']}`"
    if info["status"] == "PENDING":
        where = info.get("cluster") or "its cluster"
        return f"Ray on {where} has not started its entrypoint yet, and ends it only once it has; {again}"
    if info["status"] == "LOST":
        return f"its cluster does not answer, and gets the request when it does; {again}"
    return f"its cluster got the request, and has not ended it yet; {again}"


class _JobLog:
    """The output of a failed job whose message does not contain it; empty if its cluster does not return it."""

    def __init__(self, service: Service, job_id: str) -> None:
        self._service, self._job_id = service, job_id
        self._problem: SchedulerError | None = None

    def read(self) -> str:
        try:
            return self._service.fetch(api_path("items", self._job_id, "logs")).decode(errors="replace")
        except SchedulerError as error:
            self._problem = error
            notify(f"the output cannot be read: {error.message}")
            return ""

    def hint(self) -> str:
        logs = f"all of its output: `rmcs job logs {self._job_id}`"
        if self._problem is None:
            return logs
        if isinstance(self._problem, ClusterConnectionError):
            return f"when its cluster answers again, {logs}"
        return f"to run it once more: `rmcs task retry {self._job_id}`"


def never_ran(info: Mapping[str, Any]) -> bool:
    """Did it fail before any cluster accepted it? Then it has no output."""
    return info["status"] == "FAILED" and info.get("attempt") == 0


def end_summary(info: Mapping[str, Any]) -> str:
    """The end of a job in one line; if it never ran, with the reasons of all clusters."""
    job_id, message = info["job_id"], str(info["message"]).rstrip()
    if never_ran(info):
        return f"{job_id} failed: {message}"
    first = _LOG_FOLLOWS.sub("", message.partition("\n")[0])
    ended = _ENDED.get(info["status"], f"is {info['status']}, and has not ended")
    return f"{job_id} {ended}{f': {first}' if first else ''}"


def status_text(job_id: str, info: Mapping[str, Any], read_log: Callable[[], str]) -> str:
    """The status as `ray job status` prints it; if it failed, also the end of its output, which is read only if the
    message does not contain it. If it never ran, the full message."""
    message, _, more = str(info["message"]).rstrip().partition("\n")
    lines = [f"Status for job '{job_id}': {info['status']}"]
    below = ""
    if info["status"] == "FAILED":
        below = (more if more.strip() or never_ran(info) else read_log()).rstrip()
    if message:
        lines.append(f"Status message: {message if below else _LOG_FOLLOWS.sub('', message)}")
    shown = below.split("\n") if below else []
    return "\n".join([*lines, *(shown if never_ran(info) else shown[-_LAST_LINES:])])


def hint_never_ran(service: Service, job_id: str) -> str:
    """Advice for the owner of a job that never ran."""
    try:
        done = (item_details(service, job_id).get("outcome") or {}).get("completion") or {}
    except SchedulerError:  # only a hint
        done = {}
    fix = f"what to do: {done['next_step']}; " if done.get("next_step") else ""
    return f"{fix}it never started, more: `rmcs explain {job_id}`"
