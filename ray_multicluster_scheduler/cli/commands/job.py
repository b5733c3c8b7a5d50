"""`rmcs job`: as `ray job`, for the whole fleet."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ray_multicluster_scheduler.cli import exit_codes
from ray_multicluster_scheduler.cli.arguments import completion
from ray_multicluster_scheduler.cli.arguments import ray_job_options as as_ray
from ray_multicluster_scheduler.cli.arguments.options import AT_MOST
from ray_multicluster_scheduler.cli.arguments.selectors import find_one
from ray_multicluster_scheduler.cli.commands.job_submit import submit
from ray_multicluster_scheduler.cli.layout import item_tables
from ray_multicluster_scheduler.cli.layout.job_text import never_ran, standing_words, why_it_never_ran
from ray_multicluster_scheduler.cli.layout.output import Format, Output, emit, emit_list, say
from ray_multicluster_scheduler.cli.service.client import Address, path_of
from ray_multicluster_scheduler.cli.service.item_wait import Tail, follow, to_stdout, wait_until
from ray_multicluster_scheduler.cli.service.log_follower import last_lines, said_so_far
from ray_multicluster_scheduler.cli.terminal.interrupts import interrupted_well

if TYPE_CHECKING:
    from ray_multicluster_scheduler.cli.service.client import Service
    from ray_multicluster_scheduler.common.exception import SchedulerError

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Submit and steer Ray jobs, with the flags of `ray job`."
)
# As `ray job submit python x.py --flag`, also without `--`: what stands behind the entrypoint is the entrypoint's.
app.command("submit", context_settings={"allow_interspersed_args": False})(submit)

STOPS_WITHIN_S = 10.0
"""What a job that runs needs to end is 2 to 3 s; whoever wants to wait for longer says so."""

_Job = Annotated[
    str,
    typer.Argument(
        metavar="JOB_ID", help="An id, the beginning of one, or `last`.", autocompletion=completion.ids("job")
    ),
]


@app.command()
def status(
    job_id: _Job,
    output: Output = Format.table,
    address: Address = None,
    verify: as_ray.Verify = "true",
    headers: as_ray.Headers = None,
    log_style: as_ray.Style = as_ray.LogStyle.auto,
    log_color: as_ray.Color = as_ray.LogColor.auto,
    verbose: as_ray.Verbose = False,
) -> None:
    """Say how a job stands.

    Of one that failed, also the end of what it printed. Exit code 0 if it succeeded, 100 if it failed, 101 if it is
    not over, 103 if it was stopped.
    """
    service = as_ray.connect_as_ray(address, verify, headers, log_style, log_color, verbose=verbose)
    found = find_one(service, job_id, "job")
    info = service.get(path_of("jobs", found))
    printed = _Printed(service, found)
    emit(info, output, lambda: standing_words(found, info, printed.text))
    if output is Format.table and info["status"] == "FAILED":
        say(why_it_never_ran(service, found) if never_ran(info) else printed.hint())
    raise typer.Exit(exit_codes.code_of(info["status"]))


@app.command()
def logs(
    job_id: _Job,
    follow_it: Annotated[bool, typer.Option("-f", "--follow", help="Go on with what comes, until it is over.")] = False,
    tail: Tail = None,
    address: Address = None,
    verify: as_ray.Verify = "true",
    headers: as_ray.Headers = None,
    log_style: as_ray.Style = as_ray.LogStyle.auto,
    log_color: as_ray.Color = as_ray.LogColor.auto,
    verbose: as_ray.Verbose = False,
) -> None:
    """Print what a job printed.

    With --follow, the exit code is as of `rmcs job status`.
    """
    service = as_ray.connect_as_ray(address, verify, headers, log_style, log_color, verbose=verbose)
    found = find_one(service, job_id, "job")
    if not follow_it:
        told = service.fetch(path_of("items", found, "logs"))
        to_stdout(last_lines(said_so_far(service, found, told), tail))
        return
    with interrupted_well(service, found, cancel=False, group="job"):
        item = follow(service, found, to_stdout, tail=tail)
    raise typer.Exit(exit_codes.code_of(item["state"]))


@app.command()
def stop(
    job_id: _Job,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Do not wait for its end.")] = False,
    timeout: Annotated[
        float | None, typer.Option("--timeout", min=0, help="Wait so many seconds for its end; default: 10.")
    ] = None,
    output: Output = Format.table,
    address: Address = None,
    verify: as_ray.Verify = "true",
    headers: as_ray.Headers = None,
    log_style: as_ray.Style = as_ray.LogStyle.auto,
    log_color: as_ray.Color = as_ray.LogColor.auto,
    verbose: as_ray.Verbose = False,
) -> None:
    """Stop a job, queued or running.

    Exit code 0 when it is over, 101 if it is not. The stop is asked for at once and stays asked for. A job that Ray has
    not started yet ends only once it has.
    """
    service = as_ray.connect_as_ray(address, verify, headers, log_style, log_color, verbose=verbose)
    found = find_one(service, job_id, "job")
    asked = service.order(path_of("items", found, "cancel"), {"reason": "stopped by `rmcs job stop`"})
    patience_s = STOPS_WITHIN_S if timeout is None else timeout
    if not no_wait:
        wait_until(service, found, exit_codes.is_over, patience_s)
    info = service.get(path_of("jobs", found))
    over = exit_codes.is_over(info["status"])
    waited = "" if no_wait else f" after {patience_s:g} s: {why_not_over(info)}"
    if not asked["changed"]:
        say(f"{found} is over already: {info['status']}")
    else:
        say(f"{found} is {info['status']}" if over else f"{found} was asked to stop, and is {info['status']}{waited}")
    emit(info, output, lambda: found)
    raise typer.Exit(exit_codes.OK if over or no_wait else exit_codes.NOT_FINISHED)


@app.command()
def delete(
    job_id: _Job,
    output: Output = Format.table,
    address: Address = None,
    verify: as_ray.Verify = "true",
    headers: as_ray.Headers = None,
    log_style: as_ray.Style = as_ray.LogStyle.auto,
    log_color: as_ray.Color = as_ray.LogColor.auto,
    verbose: as_ray.Verbose = False,
) -> None:
    """Forget a job that is over, and its history.

    What Ray keeps of it in its cluster is not touched.
    """
    service = as_ray.connect_as_ray(address, verify, headers, log_style, log_color, verbose=verbose)
    found = find_one(service, job_id, "job")
    answer = service.delete(path_of("items", found))
    say(f"{found} is forgotten")
    emit(answer, output, lambda: found)


@app.command("list")
def list_jobs(
    limit: Annotated[int, typer.Option("--limit", min=1, help=AT_MOST)] = 50,
    output: Output = Format.table,
    address: Address = None,
    verify: as_ray.Verify = "true",
    headers: as_ray.Headers = None,
    log_style: as_ray.Style = as_ray.LogStyle.auto,
    log_color: as_ray.Color = as_ray.LogColor.auto,
    verbose: as_ray.Verbose = False,
) -> None:
    """List jobs, newest first."""
    rows = as_ray.connect_as_ray(address, verify, headers, log_style, log_color, verbose=verbose).rows(
        path_of("jobs"), "jobs", limit
    )
    emit_list(rows, output, lambda rows: item_tables.jobs_table(rows, time.time()), "no job is known")
    if len(rows) == limit:
        say(f"there may be more than these {limit}: --limit")


def why_not_over(info: Mapping[str, Any]) -> str:
    """Why a job that was asked to stop is not over, and what to do."""
    again = f"see `rmcs job status {info['job_id']}`"
    if info["status"] == "PENDING":
        where = info.get("cluster") or "its cluster"
        return f"Ray on {where} has not started its entrypoint yet, and ends it only once it has; {again}"
    if info["status"] == "LOST":
        return f"its cluster does not answer, and is told when it does; {again}"
    return f"its cluster was told, and has not ended it yet; {again}"


class _Printed:
    """Of a job whose message does not have the end of it; nothing, if its cluster cannot be asked any more."""

    def __init__(self, service: Service, job_id: str) -> None:
        self._service, self._job_id = service, job_id
        self._problem: SchedulerError | None = None

    def text(self) -> str:
        from ray_multicluster_scheduler.common.exception import SchedulerError

        try:
            return self._service.fetch(path_of("items", self._job_id, "logs")).decode(errors="replace")
        except SchedulerError as error:
            self._problem = error
            say(f"what it printed cannot be had: {error.message}")
            return ""

    def hint(self) -> str:
        from ray_multicluster_scheduler.common.exception import ClusterConnectionError

        logs = f"all that it printed: `rmcs job logs {self._job_id}`"
        if self._problem is None:
            return logs
        if isinstance(self._problem, ClusterConnectionError):
            return f"when its cluster answers again, {logs}"
        return f"to run it once more: `rmcs task retry {self._job_id}`"
