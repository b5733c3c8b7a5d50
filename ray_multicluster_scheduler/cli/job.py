"""`rmcs job`: as `ray job`, for the whole fleet."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from ray_multicluster_scheduler.cli import completion, exit_codes, item_tables
from ray_multicluster_scheduler.cli import ray_job_options as as_ray
from ray_multicluster_scheduler.cli.job_submit import submit
from ray_multicluster_scheduler.cli.output import Format, Output, emit, say
from ray_multicluster_scheduler.cli.printed import last_lines
from ray_multicluster_scheduler.cli.selectors import find_one
from ray_multicluster_scheduler.cli.service import Address, path_of
from ray_multicluster_scheduler.cli.waiting import Tail, Timeout, follow, interrupted_well, to_stdout, wait_until

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Submit and steer Ray jobs, with the flags of `ray job`."
)
# As `ray job submit python x.py --flag`, also without `--`: what stands behind the entrypoint is the entrypoint's.
app.command("submit", context_settings={"allow_interspersed_args": False})(submit)

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
    """Say how a job stands. Ends with 0 if it succeeded, 100 failed, 101 not over, 103 stopped."""
    service = as_ray.connect_as_ray(address, verify, headers, log_style, log_color, verbose=verbose)
    found = find_one(service, job_id, "job")
    info = service.get(path_of("jobs", found))
    message = str(info["message"]).partition("\n")[0]
    words = f"Status for job '{found}': {info['status']}" + (f"\nStatus message: {message}" if message else "")
    emit(info, output, lambda: words)
    raise typer.Exit(exit_codes.code_of(info["status"]))


@app.command()
def logs(
    job_id: _Job,
    follow_it: Annotated[bool, typer.Option("-f", "--follow", help="As it comes, until it is over.")] = False,
    tail: Tail = None,
    address: Address = None,
    verify: as_ray.Verify = "true",
    headers: as_ray.Headers = None,
    log_style: as_ray.Style = as_ray.LogStyle.auto,
    log_color: as_ray.Color = as_ray.LogColor.auto,
    verbose: as_ray.Verbose = False,
) -> None:
    """Print what a job printed. With -f, ends as it ends: 0, 100 or 103."""
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
    timeout: Timeout = None,
    output: Output = Format.table,
    address: Address = None,
    verify: as_ray.Verify = "true",
    headers: as_ray.Headers = None,
    log_style: as_ray.Style = as_ray.LogStyle.auto,
    log_color: as_ray.Color = as_ray.LogColor.auto,
    verbose: as_ray.Verbose = False,
) -> None:
    """Stop a job, queued or running. Ends with 0 when it is over, 101 if it is not."""
    service = as_ray.connect_as_ray(address, verify, headers, log_style, log_color, verbose=verbose)
    found = find_one(service, job_id, "job")
    asked = service.post(path_of("items", found, "cancel"), {"reason": "stopped by `rmcs job stop`"})
    if not no_wait:
        wait_until(service, found, exit_codes.is_over, timeout)
    info = service.get(path_of("jobs", found))
    over = exit_codes.is_over(info["status"])
    if not asked.get("changed", True):
        say(f"{found} is over already: {info['status']}")
    else:
        say(f"{found} is {info['status']}" if over else f"{found} was asked to stop, and is {info['status']}")
    emit(info, output, lambda: found)
    raise typer.Exit(exit_codes.OK if over or no_wait else exit_codes.NOT_FINISHED)


@app.command()
def delete(
    job_id: _Job,
    address: Address = None,
    verify: as_ray.Verify = "true",
    headers: as_ray.Headers = None,
    log_style: as_ray.Style = as_ray.LogStyle.auto,
    log_color: as_ray.Color = as_ray.LogColor.auto,
    verbose: as_ray.Verbose = False,
) -> None:
    """Forget a job that is over, and its history. What Ray keeps of it in its cluster is not touched."""
    service = as_ray.connect_as_ray(address, verify, headers, log_style, log_color, verbose=verbose)
    found = find_one(service, job_id, "job")
    service.delete(path_of("items", found))
    say(f"{found} is forgotten")


@app.command("list")
def list_jobs(
    limit: Annotated[int, typer.Option("--limit", min=1, help="So many at the most.")] = 50,
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
