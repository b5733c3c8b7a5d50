"""`rmcs job submit`: as `ray job submit`, to the best cluster of the fleet."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from ray_multicluster_scheduler.cli import exit_codes
from ray_multicluster_scheduler.cli.arguments import completion
from ray_multicluster_scheduler.cli.arguments import ray_job_options as as_ray
from ray_multicluster_scheduler.cli.arguments.options import Cpus, Gpus, Memory, RequiredTags, Resources, Tags
from ray_multicluster_scheduler.cli.arguments.selectors import doubt_cluster
from ray_multicluster_scheduler.cli.commands.plan import amounts_of
from ray_multicluster_scheduler.cli.layout.job_text import changed_paths, end_words, never_ran, why_it_never_ran
from ray_multicluster_scheduler.cli.layout.output import Format, Output, emit, say
from ray_multicluster_scheduler.cli.service.client import Address, Service, check_there, path_of
from ray_multicluster_scheduler.cli.service.item_wait import CancelOnInterrupt, Timeout, follow, patiently, to_stdout
from ray_multicluster_scheduler.cli.terminal.interrupts import goes_on, interrupted_well
from ray_multicluster_scheduler.cli.terminal.stderr_messages import write_stderr


def submit(
    entrypoint: Annotated[list[str], typer.Argument(metavar="ENTRYPOINT", help="What to run, behind --.")],
    submission_id: Annotated[
        str | None, typer.Option("--submission-id", help="Its id; the same again is the same job.")
    ] = None,
    job_id: Annotated[str | None, typer.Option("--job-id", hidden=True, help="Use --submission-id.")] = None,
    runtime_env: Annotated[Path | None, typer.Option("--runtime-env", help="A YAML file with a runtime_env.")] = None,
    runtime_env_json: Annotated[str | None, typer.Option("--runtime-env-json", help="The same, as JSON.")] = None,
    working_dir: Annotated[str | None, typer.Option("--working-dir", help="A folder that is sent along.")] = None,
    metadata_json: Annotated[str | None, typer.Option("--metadata-json", help="Its metadata, as JSON.")] = None,
    entrypoint_num_cpus: Annotated[
        float | None, typer.Option("--entrypoint-num-cpus", min=0, help="CPUs that Ray holds for the entrypoint.")
    ] = None,
    entrypoint_num_gpus: Annotated[
        float | None, typer.Option("--entrypoint-num-gpus", min=0, help="GPUs that Ray holds for it.")
    ] = None,
    entrypoint_memory: Annotated[
        int | None, typer.Option("--entrypoint-memory", min=0, help="Bytes that Ray holds for it.")
    ] = None,
    entrypoint_resources: Annotated[
        str | None, typer.Option("--entrypoint-resources", help="What else Ray holds for it, as JSON.")
    ] = None,
    entrypoint_label_selector: Annotated[
        str | None, typer.Option("--entrypoint-label-selector", hidden=True, help="Not for a fleet: --require-tag.")
    ] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Print its id, and do not wait for it.")] = False,
    name: Annotated[str | None, typer.Option("--name", help="What it is called.")] = None,
    cpus: Cpus = None,
    gpus: Gpus = None,
    memory: Memory = None,
    resource: Resources = None,
    tag: Tags = None,
    require_tag: RequiredTags = None,
    preferred_cluster: Annotated[
        str | None,
        typer.Option("--preferred-cluster", help="Where it should go.", autocompletion=completion.clusters),
    ] = None,
    priority: Annotated[int, typer.Option("--priority", help="Higher numbers go first.")] = 0,
    retries: Annotated[int | None, typer.Option("--retries", min=0, help="Try it again so often if it fails.")] = None,
    timeout: Timeout = None,
    cancel_on_interrupt: CancelOnInterrupt = False,
    output: Output = Format.table,
    address: Address = None,
    verify: as_ray.Verify = "true",
    headers: as_ray.Headers = None,
    log_style: as_ray.Style = as_ray.LogStyle.auto,
    log_color: as_ray.Color = as_ray.LogColor.auto,
    verbose: as_ray.Verbose = False,
) -> None:
    """Submit a job; print what it prints, until it is over.

    Its output is on stdout; with -o json that is on stderr, and how it ended on stdout. Ctrl+C leaves it running.
    Exit code 0 if it succeeded, 100 if it failed, 101 if it is not over, 103 if it was stopped.
    """
    if entrypoint_label_selector is not None:
        raise typer.BadParameter(
            "nodes are not chosen from here; choose clusters by --require-tag.",
            param_hint="--entrypoint-label-selector",
        )
    _check(entrypoint, priority)
    _check_not_empty(
        {"--name": name, "--submission-id": submission_id, "--job-id": job_id, "--working-dir": working_dir}
    )
    held = {"CPU": entrypoint_num_cpus, "GPU": entrypoint_num_gpus, "memory": entrypoint_memory}
    options: dict[str, Any] = {
        "submission_id": submission_id or job_id,
        "runtime_env": as_ray.runtime_env_of(runtime_env, runtime_env_json, working_dir),
        "metadata": as_ray.json_object(metadata_json, "--metadata-json"),
        "entrypoint_resources": {
            **(as_ray.json_object(entrypoint_resources, "--entrypoint-resources") or {}),
            **{key: amount for key, amount in held.items() if amount is not None},
        }
        or None,
        "resource_requirements": amounts_of(cpus, gpus, memory, resource) or None,
        "name": name,
        "tags": tag,
        "require_tags": require_tag,
        "preferred_cluster": preferred_cluster,
        "priority": priority,
        "retries": retries,
    }
    service = as_ray.connect_as_ray(address, verify, headers, log_style, log_color, verbose=verbose)
    check_there(service)
    given = {key: one for key, one in options.items() if one is not None}
    made = _submit(service, shlex.join(entrypoint), given, as_ray.token_of(headers), as_ray.trusted(verify))
    if no_wait:
        info = service.get(path_of("jobs", made))
        over = exit_codes.is_over(str(info["status"]))
        if over:
            _say_how_it_ended(service, info, preferred_cluster)
        else:
            say(f"{made} is accepted; follow it with `rmcs job logs -f {made}`")
        emit(info, output, lambda: made)
        if over:  # what can never run fails at once
            raise typer.Exit(exit_codes.code_of(str(info["status"])))
        return
    say(f"{made} is accepted; what it prints follows, and Ctrl+C {'stops it' if cancel_on_interrupt else 'leaves it'}")
    _until_it_is_over(service, made, output, timeout, preferred_cluster, cancel=cancel_on_interrupt)


def _check_not_empty(options: dict[str, str | None]) -> None:
    """A variable of a script that is not set, say: without its id, a job that is submitted again runs twice. Raises
    BadParameter."""
    for option, value in options.items():
        if value is not None and not value.strip():
            raise typer.BadParameter("it is empty; give something, or leave it out.", param_hint=option)


def _check(entrypoint: list[str], priority: int) -> None:
    """What can be seen to be wrong before anybody is asked. Raises BadParameter."""
    from ray_multicluster_scheduler.common.model.item_fields import MOST_PRIORITY

    if not any(word.strip() for word in entrypoint):
        raise typer.BadParameter("it is empty; give a command, such as python train.py.", param_hint="ENTRYPOINT")
    if abs(priority) > MOST_PRIORITY:
        said = f"it is too {'high' if priority > 0 else 'low'}; give one from {-MOST_PRIORITY} to {MOST_PRIORITY}."
        raise typer.BadParameter(said, param_hint="--priority")


def _submit(service: Service, entrypoint: str, options: dict[str, Any], token: str | None, ca: str | None) -> str:
    """As every program does it: folders are packed here, and it is accepted when this returns. One that was accepted
    and can never run has failed like any other; what was refused raises."""
    from ray_multicluster_scheduler import SchedulerError, UnifiedScheduler

    with UnifiedScheduler(address=service.address, token=token, tls_ca=ca) as scheduler:
        try:
            return scheduler.submit_job(entrypoint, **options)
        except SchedulerError as error:
            if error.task_id is None or not _failed_with(service, error.task_id, error.message):
                raise
            return error.task_id


def _failed_with(service: Service, job_id: str, message: str) -> bool:
    """Is this what became of a job there? It may be another one that has its id, or there may be none."""
    from ray_multicluster_scheduler.common.exception import UnknownItemError

    try:
        info = service.get(path_of("jobs", job_id))
    except UnknownItemError:
        return False
    return never_ran(info) and str(info["message"]).startswith(message)


def _until_it_is_over(
    service: Service, job_id: str, output: Format, timeout: float | None, preferred: str | None, *, cancel: bool
) -> None:
    with interrupted_well(service, job_id, cancel=cancel, group="job"):
        follow(service, job_id, to_stdout if output is Format.table else write_stderr, timeout)
    info = patiently(lambda: service.get(path_of("jobs", job_id)))
    _say_how_it_ended(service, info, preferred)
    if not exit_codes.is_over(info["status"]):  # --timeout has ended the wait
        say(goes_on(job_id, "job"))
    if output is not Format.table:
        emit(info, output, str)
    if paths := changed_paths(service, info):
        say(paths)
    raise typer.Exit(exit_codes.code_of(info["status"]))


def _say_how_it_ended(service: Service, info: dict[str, Any], preferred: str | None) -> None:
    """``preferred`` is the cluster that was asked for: it may be misspelt."""
    say(end_words(info))
    if never_ran(info):
        say(why_it_never_ran(service, info["job_id"]))
        if preferred is not None:
            doubt_cluster(service, preferred)
