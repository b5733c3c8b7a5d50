"""`rmcs job`: the commands of `ray job`, for the whole fleet."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ray_multicluster_scheduler.cli import exit_codes
from ray_multicluster_scheduler.cli.arguments.options import (
    CancelOnInterrupt,
    Cpus,
    Follow,
    Gpus,
    JobService,
    Limit,
    Memory,
    PreferredCluster,
    RequiredTags,
    Resources,
    Tags,
    Tail,
    Timeout,
    item_argument,
    json_object,
    requested_resources,
    runtime_env_of,
    with_ray_options,
)
from ray_multicluster_scheduler.cli.arguments.selectors import find_item, warn_if_unknown_cluster
from ray_multicluster_scheduler.cli.layout.item_tables import jobs_table
from ray_multicluster_scheduler.cli.layout.output import (
    Format,
    Output,
    emit,
    emit_list,
    notify,
    to_stdout,
    write_stderr,
)
from ray_multicluster_scheduler.cli.service.client import Service, api_path
from ray_multicluster_scheduler.cli.service.item_wait import (
    decoded_log,
    follow,
    how_to_go_on,
    interruptible,
    last_lines,
    retry_while_away,
    wait_until,
)
from ray_multicluster_scheduler.cli.service.items import item_details
from ray_multicluster_scheduler.common.exception import ClusterConnectionError, SchedulerError, UnknownItemError

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Submit and manage Ray jobs, with the flags of `ray job`."
)

STOP_TIMEOUT_S = 10.0
"""A running job usually takes 2 to 3 s to end."""
_LAST_LINES = 20
_LOG_FOLLOWS = re.compile(r",? *last available logs(?: \([^()]*\))?: *$")
"""Ray ends a message with this before the log; it is removed where no log is shown."""
_ENDED = {"SUCCEEDED": "succeeded", "FAILED": "failed", "STOPPED": "was stopped"}
_Job = Annotated[str, item_argument("job", "JOB_ID")]


# As `ray job submit python x.py --flag`, also without `--`: options behind the entrypoint belong to the entrypoint.
@app.command(context_settings={"allow_interspersed_args": False})
@with_ray_options
def submit(
    connection: JobService,
    entrypoint: Annotated[list[str], typer.Argument(metavar="ENTRYPOINT", help="What to run, behind --.")],
    submission_id: Annotated[
        str | None, typer.Option("--submission-id", help="Its id; the same again is the same job.")
    ] = None,
    job_id: Annotated[str | None, typer.Option("--job-id", hidden=True, help="Use --submission-id.")] = None,
    runtime_env: Annotated[Path | None, typer.Option("--runtime-env", help="A YAML file with a runtime_env.")] = None,
    runtime_env_json: Annotated[str | None, typer.Option("--runtime-env-json", help="The same, as JSON.")] = None,
    working_dir: Annotated[str | None, typer.Option("--working-dir", help="A folder to upload.")] = None,
    metadata_json: Annotated[str | None, typer.Option("--metadata-json", help="Its metadata, as JSON.")] = None,
    entrypoint_num_cpus: Annotated[
        float | None, typer.Option("--entrypoint-num-cpus", min=0, help="CPUs that Ray reserves for the entrypoint.")
    ] = None,
    entrypoint_num_gpus: Annotated[
        float | None, typer.Option("--entrypoint-num-gpus", min=0, help="GPUs that Ray reserves for it.")
    ] = None,
    entrypoint_memory: Annotated[
        int | None, typer.Option("--entrypoint-memory", min=0, help="Bytes that Ray reserves for it.")
    ] = None,
    entrypoint_resources: Annotated[
        str | None, typer.Option("--entrypoint-resources", help="What else Ray reserves for it, as JSON.")
    ] = None,
    entrypoint_label_selector: Annotated[
        str | None, typer.Option("--entrypoint-label-selector", hidden=True, help="Not for a fleet: --require-tag.")
    ] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Print its id, and do not wait for it.")] = False,
    name: Annotated[str | None, typer.Option("--name", help="Its name.")] = None,
    cpus: Cpus = None,
    gpus: Gpus = None,
    memory: Memory = None,
    resource: Resources = None,
    tag: Tags = None,
    require_tag: RequiredTags = None,
    preferred_cluster: PreferredCluster = None,
    priority: Annotated[int, typer.Option("--priority", help="Higher numbers go first.")] = 0,
    retries: Annotated[int | None, typer.Option("--retries", min=0, help="Retry it so often if it fails.")] = None,
    timeout: Timeout = None,
    cancel_on_interrupt: CancelOnInterrupt = False,
    output: Output = Format.table,
) -> None:
    """Submit a job; print its output until it is over.

    The output of the job is on stdout; with -o json it is on stderr, and the final state on stdout. Ctrl+C leaves it
    running. Exit code 0 if it succeeded, 100 if it failed, 101 if it is not over, 103 if it was stopped.
    """
    if entrypoint_label_selector is not None:
        raise typer.BadParameter(
            "nodes are not chosen from here; choose clusters by --require-tag.",
            param_hint="--entrypoint-label-selector",
        )
    _check_values(entrypoint, priority)
    _check_not_empty(
        {"--name": name, "--submission-id": submission_id, "--job-id": job_id, "--working-dir": working_dir}
    )
    held = {"CPU": entrypoint_num_cpus, "GPU": entrypoint_num_gpus, "memory": entrypoint_memory}
    options: dict[str, Any] = {
        "submission_id": submission_id or job_id,
        "runtime_env": runtime_env_of(runtime_env, runtime_env_json, working_dir),
        "metadata": json_object(metadata_json, "--metadata-json"),
        "entrypoint_resources": {
            **(json_object(entrypoint_resources, "--entrypoint-resources") or {}),
            **{key: amount for key, amount in held.items() if amount is not None},
        }
        or None,
        "resource_requirements": requested_resources(cpus, gpus, memory, resource) or None,
        "name": name,
        "tags": tag,
        "require_tags": require_tag,
        "preferred_cluster": preferred_cluster,
        "priority": priority,
        "retries": retries,
    }
    service = connection.service
    service.get(api_path("fleet"))  # the client library would wait for a service that does not answer
    given = {key: one for key, one in options.items() if one is not None}
    accepted = _submit(connection, shlex.join(entrypoint), given)
    if no_wait:
        info = service.get(api_path("jobs", accepted))
        over = exit_codes.is_over(str(info["status"]))
        if over:
            _report_end(service, info, preferred_cluster)
        else:
            notify(f"{accepted} is accepted; follow it with `rmcs job logs -f {accepted}`")
        emit(info, output, lambda: accepted)
        if over:  # a job that can never run fails at once
            raise typer.Exit(exit_codes.exit_code_of(str(info["status"])))
        return
    notify(f"{accepted} is accepted; its output follows, and Ctrl+C {'stops' if cancel_on_interrupt else 'leaves'} it")
    with interruptible(service, accepted, cancel=cancel_on_interrupt, group="job"):
        follow(service, accepted, to_stdout if output is Format.table else write_stderr, timeout)
    info = retry_while_away(lambda: service.get(api_path("jobs", accepted)))
    _report_end(service, info, preferred_cluster)
    if not exit_codes.is_over(info["status"]):  # --timeout ended the wait
        notify(how_to_go_on(accepted, "job"))
    if output is not Format.table:
        emit(info, output, str)
    if paths := changed_paths(service, info):
        notify(paths)
    raise typer.Exit(exit_codes.exit_code_of(info["status"]))


def _check_not_empty(options: dict[str, str | None]) -> None:
    """Raises BadParameter for an empty value, such as that of an unset variable in a script: a job without its id would
    run twice if it is submitted again."""
    for option, value in options.items():
        if value is not None and not value.strip():
            raise typer.BadParameter("it is empty; give a value, or leave it out.", param_hint=option)


def _check_values(entrypoint: list[str], priority: int) -> None:
    """Raises BadParameter for values that a service would refuse."""
    from ray_multicluster_scheduler.common.model.item_fields import MOST_PRIORITY

    if not any(word.strip() for word in entrypoint):
        raise typer.BadParameter("it is empty; give a command, such as python train.py.", param_hint="ENTRYPOINT")
    if abs(priority) > MOST_PRIORITY:
        text = f"it is too {'high' if priority > 0 else 'low'}; give one from {-MOST_PRIORITY} to {MOST_PRIORITY}."
        raise typer.BadParameter(text, param_hint="--priority")


def _submit(connection: JobService, entrypoint: str, options: dict[str, Any]) -> str:
    """Submit through the client library, which uploads folders; returns the id when the job is durably accepted. A job
    that was accepted and can never run is not an error here; raises SchedulerError for one that was refused."""
    from ray_multicluster_scheduler import UnifiedScheduler

    service, token, tls_ca = connection
    with UnifiedScheduler(address=service.address, token=token, tls_ca=tls_ca) as scheduler:
        try:
            return scheduler.submit_job(entrypoint, **options)
        except SchedulerError as error:
            if error.task_id is None or not _failed_with(service, error.task_id, error.message):
                raise
            return error.task_id


def _failed_with(service: Service, job_id: str, message: str) -> bool:
    """Did the job fail with this message? Another job may have its id, or none."""
    try:
        info = service.get(api_path("jobs", job_id))
    except UnknownItemError:
        return False
    return never_ran(info) and str(info["message"]).startswith(message)


def _report_end(service: Service, info: dict[str, Any], preferred: str | None) -> None:
    """``preferred`` is the requested cluster, whose name may be misspelt."""
    notify(end_summary(info))
    if never_ran(info):
        notify(hint_never_ran(service, info["job_id"]))
        if preferred is not None:
            warn_if_unknown_cluster(service, preferred)


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
    service = connection.service
    found = find_item(service, job_id, "job")
    if not follow_it:
        log = service.fetch(api_path("items", found, "logs"))
        to_stdout(last_lines(decoded_log(service, found, log), tail))
        return
    with interruptible(service, found, cancel=False, group="job"):
        item = follow(service, found, to_stdout, tail=tail)
    raise typer.Exit(exit_codes.exit_code_of(item["state"]))


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

    Exit code 0 when it is over, 101 if it is not. The request takes effect at once and stays in effect. A job that Ray
    has not started yet ends only once it has.
    """
    service = connection.service
    found = find_item(service, job_id, "job")
    answer = service.change(api_path("items", found, "cancel"), {"reason": "stopped by `rmcs job stop`"})
    patience_s = STOP_TIMEOUT_S if timeout is None else timeout
    if not no_wait:
        wait_until(service, found, exit_codes.is_over, patience_s)
    info = service.get(api_path("jobs", found))
    over = exit_codes.is_over(info["status"])
    waited = "" if no_wait else f" after {patience_s:g} s: {why_not_over(info)}"
    if not answer["changed"]:
        notify(f"{found} is over already: {info['status']}")
    else:
        state = info["status"]
        notify(f"{found} is {state}" if over else f"{found} was asked to stop, and is {state}{waited}")
    emit(info, output, lambda: found)
    raise typer.Exit(exit_codes.OK if over or no_wait else exit_codes.NOT_FINISHED)


@app.command()
@with_ray_options
def delete(connection: JobService, job_id: _Job, output: Output = Format.table) -> None:
    """Delete a job that is over, and its history.

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
    emit_list(rows, output, lambda rows: jobs_table(rows, time.time()), "no job is known")
    if len(rows) == limit:
        notify(f"there may be more than these {limit}: --limit")


def why_not_over(info: Mapping[str, Any]) -> str:
    """Why a job that was asked to stop is not over, and what to do."""
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
    """How a job ended in one line; if it never ran, with the reasons of all clusters."""
    job_id, message = info["job_id"], str(info["message"]).rstrip()
    if never_ran(info):
        return f"{job_id} failed: {message}"
    first = _LOG_FOLLOWS.sub("", message.partition("\n")[0])
    ended = _ENDED.get(info["status"], f"is {info['status']}, and not over")
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


def changed_paths(service: Service, info: Mapping[str, Any]) -> str:
    """Which paths of the entrypoint were converted for the home directory of its cluster; "" if none, or unknown."""
    try:
        pairs = service.get(api_path("items", info["job_id"], "explain")).get("converted_paths") or ()
    except SchedulerError:  # only a hint
        return ""
    became = ", ".join(f"{before} became {after}" for before, after in pairs)
    return f"for the home directory of {info['cluster']}, {became}" if became else ""


def hint_never_ran(service: Service, job_id: str) -> str:
    """What its owner can do about a job that never ran."""
    try:
        done = (item_details(service, job_id).get("outcome") or {}).get("completion") or {}
    except SchedulerError:  # only a hint
        done = {}
    fix = f"what to do: {done['next_step']}; " if done.get("next_step") else ""
    return f"{fix}it never started, more: `rmcs explain {job_id}`"
