"""`rmcs job`: as `ray job`, for the whole fleet."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ray_multicluster_scheduler.cli import completion, exit_codes, item_tables
from ray_multicluster_scheduler.cli import ray_job_options as as_ray
from ray_multicluster_scheduler.cli.job_submit import submit
from ray_multicluster_scheduler.cli.options import AT_MOST
from ray_multicluster_scheduler.cli.output import Format, Output, emit, say
from ray_multicluster_scheduler.cli.printed import last_lines
from ray_multicluster_scheduler.cli.selectors import find_one
from ray_multicluster_scheduler.cli.service import Address, path_of
from ray_multicluster_scheduler.cli.waiting import Tail, follow, interrupted_well, to_stdout, wait_until

if TYPE_CHECKING:
    from ray_multicluster_scheduler.cli.service import Service

_LAST_LINES = 20
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
    emit(info, output, lambda: "\n".join(_standing(service, found, info)))
    if output is Format.table and info["status"] == "FAILED":
        say(f"all that it printed: `rmcs job logs {found}`")
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
        to_stdout(last_lines(service.fetch(path_of("items", found, "logs")).decode(errors="replace"), tail))
        return
    with interrupted_well(service, found, cancel=False):
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
    asked = service.post(path_of("items", found, "cancel"), {"reason": "stopped by `rmcs job stop`"})
    patience_s = STOPS_WITHIN_S if timeout is None else timeout
    if not no_wait:
        wait_until(service, found, exit_codes.is_over, patience_s)
    info = service.get(path_of("jobs", found))
    over = exit_codes.is_over(info["status"])
    waited = "" if no_wait else f" after {patience_s:g} s: {why_not_over(info)}"
    if not asked.get("changed", True):
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
    emit(rows, output, lambda: item_tables.jobs_table(rows, time.time()))
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


def _standing(service: Service, job_id: str, info: dict[str, Any]) -> Iterator[str]:
    """How it stands, in Ray's words; of one that failed also the end of what it printed."""
    message, _, more = str(info["message"]).partition("\n")
    yield f"Status for job '{job_id}': {info['status']}"
    if message:
        yield f"Status message: {message}"
    if info["status"] == "FAILED":
        yield from (more if more.strip() else _printed(service, job_id)).rstrip().split("\n")[-_LAST_LINES:]


def _printed(service: Service, job_id: str) -> str:
    """Of a job whose message does not have the end of it; nothing, if its cluster cannot be asked any more."""
    from ray_multicluster_scheduler.common.exception import SchedulerError

    try:
        return service.fetch(path_of("items", job_id, "logs")).decode(errors="replace")
    except SchedulerError as error:
        say(f"what it printed cannot be had: {error.message}")
        return ""
