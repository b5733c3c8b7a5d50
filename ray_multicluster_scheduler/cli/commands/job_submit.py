"""`rmcs job submit`: submit a Ray job and print its output until it is over. Loaded by `rmcs job` when it runs."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ray_multicluster_scheduler.cli import exit_codes
from ray_multicluster_scheduler.cli.arguments.item_options import (
    Cpus,
    Gpus,
    Memory,
    PreferredCluster,
    RequiredTags,
    Resources,
    Tags,
    amount_option,
    field_option,
    requested_resources,
    runtime_env_of,
)
from ray_multicluster_scheduler.cli.arguments.options import (
    CancelOnInterrupt,
    JobService,
    Timeout,
    json_object,
    with_ray_options,
)
from ray_multicluster_scheduler.cli.arguments.selectors import warn_if_unknown_cluster
from ray_multicluster_scheduler.cli.commands.job import end_summary, hint_never_ran, never_ran
from ray_multicluster_scheduler.cli.layout.output import Format, Output, emit, notify, to_stdout, write_stderr
from ray_multicluster_scheduler.cli.service.client import Service, api_path
from ray_multicluster_scheduler.cli.service.item_wait import follow, how_to_go_on, interruptible, retry_while_away
from ray_multicluster_scheduler.common.exception import SchedulerError, UnknownItemError


@with_ray_options
def submit(
    connection: JobService,
    entrypoint: Annotated[list[str], typer.Argument(metavar="ENTRYPOINT", help="What to run, behind --.")],
    submission_id: Annotated[
        str | None, field_option("submission_id", "--submission-id", "the same again is the same job")
    ] = None,
    job_id: Annotated[str | None, typer.Option("--job-id", hidden=True, help="Use --submission-id.")] = None,
    runtime_env: Annotated[Path | None, field_option("runtime_env", "--runtime-env", "a YAML file")] = None,
    runtime_env_json: Annotated[str | None, typer.Option("--runtime-env-json", help="The same, as JSON.")] = None,
    working_dir: Annotated[str | None, typer.Option("--working-dir", help="A folder to upload.")] = None,
    metadata_json: Annotated[str | None, field_option("metadata", "--metadata-json", "as JSON")] = None,
    entrypoint_num_cpus: Annotated[
        float | None, amount_option("--entrypoint-num-cpus", "CPUs that Ray reserves for the entrypoint.")
    ] = None,
    entrypoint_num_gpus: Annotated[
        float | None, amount_option("--entrypoint-num-gpus", "GPUs that Ray reserves for it.")
    ] = None,
    entrypoint_memory: Annotated[
        int | None, amount_option("--entrypoint-memory", "Bytes that Ray reserves for it.")
    ] = None,
    entrypoint_resources: Annotated[
        str | None, field_option("entrypoint_resources", "--entrypoint-resources", "as JSON")
    ] = None,
    entrypoint_label_selector: Annotated[
        str | None, typer.Option("--entrypoint-label-selector", hidden=True, help="Not for a fleet: --require-tag.")
    ] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Print its id, and do not wait for it.")] = False,
    name: Annotated[str | None, field_option("name", "--name")] = None,
    cpus: Cpus = None,
    gpus: Gpus = None,
    memory: Memory = None,
    resource: Resources = None,
    tag: Tags = None,
    require_tag: RequiredTags = None,
    preferred_cluster: PreferredCluster = None,
    priority: Annotated[int, field_option("priority", "--priority")] = 0,
    retries: Annotated[int | None, field_option("retries", "--retries")] = None,
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
    if not any(word.strip() for word in entrypoint):
        raise typer.BadParameter("it is empty; give a command, such as python train.py.", param_hint="ENTRYPOINT")
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


def changed_paths(service: Service, info: Mapping[str, Any]) -> str:
    """Which paths of the entrypoint were converted for the home directory of its cluster; "" if none, or unknown."""
    try:
        pairs = service.get(api_path("items", info["job_id"], "explain")).get("converted_paths") or ()
    except SchedulerError:  # only a hint
        return ""
    became = ", ".join(f"{before} became {after}" for before, after in pairs)
    return f"for the home directory of {info['cluster']}, {became}" if became else ""
