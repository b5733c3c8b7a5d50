"""Builds Ray's options for tasks and actors from the record of a call; used by the runners."""

from __future__ import annotations

from typing import Any

from ray_multicluster_scheduler.common.model.actor_description import ACTOR_NAMESPACE
from ray_multicluster_scheduler.common.several_returns import VALUES_AHEAD
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.call_records import CallRecord

STREAMED = {"num_returns": "streaming", "_generator_backpressure_num_objects": VALUES_AHEAD}
"""Options of a generator: Ray holds it back while so many of its values were not read."""
_NAMED = ("CPU", "GPU", "memory")


def task_options(record: CallRecord, own_modules: list[str]) -> dict[str, Any]:
    """Options of a task. Ray's own retries are off, because the control plane retries."""
    options = _common(record, own_modules)
    options |= {"name": record.name, "max_retries": 0, "num_cpus": record.resources.get("CPU", 0)}
    return options | STREAMED if record.streams else options


def actor_options(record: CallRecord, actor: dict[str, Any], own_modules: list[str]) -> dict[str, Any]:
    """Options of an actor. As by Ray's default, one that requests no CPU needs one to be placed and then holds none.
    ``place`` is the scheduling strategy of a gang's member."""
    options = _common(record, own_modules)
    options |= {"name": actor["ray_name"], "namespace": ACTOR_NAMESPACE, "max_restarts": 0, "max_task_retries": 0}
    held = {name for name, amount in record.resources.items() if amount}
    if not held & {"GPU"}:
        del options["num_gpus"]  # with num_gpus=0 Ray gives the actor a CPU to hold, too
    if held - {"memory"} or not actor["placement"].get("CPU"):
        options["num_cpus"] = record.resources.get("CPU", 0)
    if actor["max_concurrency"] is not None:
        options["max_concurrency"] = actor["max_concurrency"]
    if "place" in actor:
        options["scheduling_strategy"] = actor["place"]
    if actor["detached"]:
        options |= {"lifetime": "detached", "max_restarts": actor["max_restarts"]}
    return options


def _common(record: CallRecord, own_modules: list[str]) -> dict[str, Any]:
    options: dict[str, Any] = {"num_gpus": record.resources.get("GPU", 0)}
    if record.resources.get("memory"):
        options["memory"] = record.resources["memory"]
    custom = {name: amount for name, amount in record.resources.items() if name not in _NAMED}
    if custom:
        options["resources"] = custom
    if record.runtime_env:
        modules = [*own_modules, *record.runtime_env.get("py_modules", [])]
        options["runtime_env"] = {**record.runtime_env, "py_modules": modules}
    return options
