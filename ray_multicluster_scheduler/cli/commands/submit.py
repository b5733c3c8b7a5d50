"""`rmcs job submit`: submit a Ray job and print its output until it has ended; `rmcs plan`: where would an item go now?

Help and bounds of the options that describe an item come from the definitions of its fields
(common/model/item_fields.py). They take long to import, so this module is imported only for these two commands.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ray_multicluster_scheduler.cli import exit_codes
from ray_multicluster_scheduler.cli.arguments import completion
from ray_multicluster_scheduler.cli.arguments.options import (
    CancelOnInterrupt,
    Config,
    JobService,
    Timeout,
    json_object,
    with_ray_options,
)
from ray_multicluster_scheduler.cli.arguments.selectors import warn_if_unknown_cluster
from ray_multicluster_scheduler.cli.commands.job import end_summary, hint_never_ran, never_ran
from ray_multicluster_scheduler.cli.layout.lines import FoldedText, text_table
from ray_multicluster_scheduler.cli.layout.output import Format, Output, emit, notify, to_stdout, write_stderr
from ray_multicluster_scheduler.cli.service.client import Address, Service, api_path, connect, find_address
from ray_multicluster_scheduler.cli.service.item_wait import continuation_hint, follow, interruptible, retry_while_away
from ray_multicluster_scheduler.common.exception import ConfigurationError, SchedulerError, UnknownItemError
from ray_multicluster_scheduler.common.model.item_fields import AMOUNT
from ray_multicluster_scheduler.common.model.submit_options import options_of
from ray_multicluster_scheduler.common.model.task_description import Fallback

if TYPE_CHECKING:
    from ray_multicluster_scheduler.common.model import SchedulingDecision


def field_option(keyword: str, flag: str, form: str = "", **more: Any) -> Any:
    """The option for a field of an item, named as the keyword of `submit_job`; ``form`` says how it is written."""
    field = options_of("job")[keyword]
    bounds: dict[str, Any] = {"min": field.values.ge, "max": field.values.le} if field.values else {}
    text = f"{field.spec.doc.removesuffix('.')}; {form}." if form else field.spec.doc
    return typer.Option(flag, help=text, **bounds, **more)


def amount_option(flag: str, text: str) -> Any:
    """The option for the amount of one resource."""
    return typer.Option(flag, min=AMOUNT.ge, help=text)


Cpus = Annotated[float | None, amount_option("--cpus", "CPUs that all of it needs.")]
Gpus = Annotated[float | None, amount_option("--gpus", "GPUs that all of it needs.")]
Memory = Annotated[str | None, typer.Option("--memory", help='Memory that all of it needs, such as "8GiB".')]
Resources = Annotated[
    list[str] | None, typer.Option("--resource", help="What else it needs, as NAME=AMOUNT; may be repeated.")
]
Tags = Annotated[list[str] | None, field_option("tags", "--tag", "may be repeated")]
RequiredTags = Annotated[list[str] | None, field_option("require_tags", "--require-tag", "may be repeated")]
PreferredCluster = Annotated[
    str | None, field_option("preferred_cluster", "--preferred-cluster", autocompletion=completion.clusters)
]

Labels = Annotated[list[str] | None, field_option("labels", "--label", "as KEY=VALUE; may be repeated")]
Pool = Annotated[str | None, field_option("pool", "--pool", autocompletion=completion.pools)]


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
    priority: Annotated[float, field_option("priority", "--priority")] = 0,
    retries: Annotated[int | None, field_option("retries", "--retries")] = None,
    label: Labels = None,
    pool: Pool = None,
    preemptible: Annotated[bool | None, field_option("preemptible", "--preemptible/--no-preemptible")] = None,
    min_runtime: Annotated[float | None, field_option("min_runtime_s", "--min-runtime", metavar="SECONDS")] = None,
    timeout: Timeout = None,
    cancel_on_interrupt: CancelOnInterrupt = False,
    output: Output = Format.table,
) -> None:
    """Submit a job; print its output until it has ended.

    The output of the job is on stdout; with -o json it is on stderr, and the final state on stdout. Ctrl+C leaves it
    running. Exit code 0 if it succeeded, 100 if it failed, 101 if it has not ended, 103 if it was stopped.
    """
    if entrypoint_label_selector is not None:
        raise typer.BadParameter(
            "nodes are not chosen from here; choose clusters by --require-tag.",
            param_hint="--entrypoint-label-selector",
        )
    if not any(word.strip() for word in entrypoint):
        raise typer.BadParameter("it is empty; give a command, such as python train.py.", param_hint="ENTRYPOINT")
    _check_not_empty(
        {
            "--name": name,
            "--submission-id": submission_id,
            "--job-id": job_id,
            "--working-dir": working_dir,
            "--pool": pool,
        }
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
        "labels": labels_of(label),
        "pool": pool,
        "preemptible": preemptible,
        "min_runtime_s": min_runtime,
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
        notify(continuation_hint(accepted, "job"))
    if output is not Format.table:
        emit(info, output, str)
    if paths := changed_paths(service, info):
        notify(paths)
    raise typer.Exit(exit_codes.exit_code_of(info["status"]))


def _check_not_empty(options: dict[str, str | None]) -> None:
    """Raises BadParameter for an empty value, such as that of an unset variable: a job without its id may run twice."""
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


def plan(
    kind: Annotated[Literal["task", "actor", "job"], typer.Option("--kind", help="The kind of item.")] = "task",
    cpus: Cpus = None,
    gpus: Gpus = None,
    memory: Memory = None,
    resource: Resources = None,
    tag: Tags = None,
    require_tag: RequiredTags = None,
    preferred_cluster: PreferredCluster = None,
    fallback: Annotated[Fallback, field_option("fallback", "--fallback")] = "any",
    label: Labels = None,
    pool: Pool = None,
    config: Config = None,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Show where an item would go now, without submitting it.

    Refreshes the clusters. Exit code 100 if it would fail at once: no cluster can ever take it, or the queue is full.
    """
    from ray_multicluster_scheduler import UnifiedScheduler
    from ray_multicluster_scheduler.common.tables import decision_rows, fails_at_once

    amounts = requested_resources(cpus, gpus, memory, resource)
    if config is None and find_address(address) is not None:
        connect(address).get(api_path("fleet"))  # the client library would wait for a service that does not answer
    with UnifiedScheduler(config=config, address=address) as scheduler:
        decision = scheduler.plan(
            amounts or None,
            kind=kind,
            tags=tag or None,
            require_tags=require_tag or None,
            preferred_cluster=preferred_cluster,
            fallback=fallback,
            labels=labels_of(label),
            pool=pool,
        )
    emit(decision.to_dict(), output, lambda: plan_text(decision))
    if decision.code == "QUEUE_FULL" or fails_at_once(decision_rows(decision)):
        raise typer.Exit(exit_codes.FAILED)


def plan_text(decision: SchedulingDecision | Mapping[str, Any]) -> FoldedText:
    """The decision with the verdict on each cluster."""
    from ray_multicluster_scheduler.common.tables import decision_text

    return FoldedText(lambda width: decision_text(decision, text_table(width)))


def requested_resources(
    cpus: float | None, gpus: float | None, memory: str | None, resource: list[str] | None
) -> dict[str, Any]:
    """The amounts that these options name. Raises BadParameter."""
    amounts: dict[str, Any] = {}
    for text in resource or []:
        name, sign, amount = text.partition("=")
        try:
            if not name or not sign:
                raise ValueError
            amounts[name] = float(amount)
        except ValueError:
            raise typer.BadParameter(f"{text!r} is not NAME=AMOUNT, such as tpu=2.", param_hint="--resource") from None
    given = {"CPU": cpus, "GPU": gpus, "memory": memory}
    return {**amounts, **{name: value for name, value in given.items() if value is not None}}


def labels_of(texts: list[str] | None) -> dict[str, str] | None:
    """The labels that these options name. Raises BadParameter."""
    for text in texts or ():
        if not text.partition("=")[0] or "=" not in text:
            raise typer.BadParameter(f"{text!r} is not KEY=VALUE, such as team=nlp.", param_hint="--label")
    return {name: value for name, _, value in (text.partition("=") for text in texts)} if texts else None


def runtime_env_of(file: Path | None, text: str | None, working_dir: str | None) -> dict[str, Any] | None:
    """From a YAML file, or from JSON; ``working_dir`` overrides theirs, as in `ray job submit`."""
    if file is not None and text is not None:
        raise typer.BadParameter("give only one of --runtime-env and --runtime-env-json.")
    found = _from_yaml(file) if file is not None else json_object(text, "--runtime-env-json")
    merged = found if working_dir is None else {**(found or {}), "working_dir": working_dir}
    _check_folder((merged or {}).get("working_dir"), "--working-dir" if working_dir is not None else "working_dir")
    return merged


def _check_folder(folder: object, option: str) -> None:
    """Raises BadParameter if a local folder, which would be uploaded, does not exist."""
    if not isinstance(folder, str) or "://" in folder:
        return
    try:
        exists = Path(folder).expanduser().exists()
    except (OSError, RuntimeError, ValueError) as error:  # not permitted, no such user, not a file name
        why = getattr(error, "strerror", None) or str(error)
        raise typer.BadParameter(f"{folder[:200]!r} cannot be read: {why}.", param_hint=option) from None
    if not exists:
        raise typer.BadParameter(f"there is no folder or archive {folder[:200]!r} here.", param_hint=option)


def _from_yaml(file: Path) -> dict[str, Any]:
    from ray_multicluster_scheduler.control_plane.config.yaml_text import parse_yaml

    try:
        value = parse_yaml(file.read_text(encoding="utf-8"), str(file))
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"{file} cannot be read: {why}.", next_step="name a YAML file") from None
    if not isinstance(value, dict):
        raise ConfigurationError(
            f"{file} has no runtime_env in it.", next_step="write keys and values, such as pip: […]"
        )
    return value
