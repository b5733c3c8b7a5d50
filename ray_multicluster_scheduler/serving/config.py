"""load_config(): instances and settings of a serving scheduler, from a YAML file."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.control_plane.config.validation_errors import did_you_mean
from ray_multicluster_scheduler.control_plane.config.yaml_text import LineIndex, parse_with_lines, read_text
from ray_multicluster_scheduler.serving.client import TaskInstance
from ray_multicluster_scheduler.serving.core import SwarmPilotScheduler
from ray_multicluster_scheduler.serving.journal import TaskJournal
from ray_multicluster_scheduler.serving.models import InstanceSettings, address_of
from ray_multicluster_scheduler.serving.predictor import LookupPredictor
from ray_multicluster_scheduler.serving.strategies import BaseStrategy, create_strategy

_log = get_logger(__name__)
_NEXT_STEP = "correct the file; examples/serving/config_example.yaml shows every key"


class _ConfiguredInstance(InstanceSettings):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    host: str = "localhost"
    port: int = Field(8100, ge=1, le=65535)


class _Strategy(BaseModel):
    """A name, or a mapping with a name and options."""

    model_config = ConfigDict(extra="forbid")

    name: str
    risk: float | None = Field(None, ge=0, le=100, description="of shortest_queue: standard deviations that are added")

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, given: object) -> object:
        return {"name": given} if isinstance(given, str) else given

    def create(self) -> BaseStrategy:
        return create_strategy(self.name, **self.model_dump(exclude={"name"}, exclude_none=True))


class ServingConfig(BaseModel):
    """The content of the file. Every key is optional."""

    model_config = ConfigDict(extra="forbid")

    instances: list[_ConfiguredInstance] = Field(default_factory=list)
    strategy: _Strategy | None = None
    strategies: dict[str, _Strategy] = Field(default_factory=dict, description="strategies of single models")
    predictions: Path | None = Field(None, description="a table for LookupPredictor, relative to the file")
    max_waiting: int | None = Field(None, ge=1)
    task_timeout_s: float | None = Field(None, gt=0)

    @field_validator("instances", mode="before")
    @classmethod
    def _addresses(cls, given: object) -> object:
        """An instance may be given as "host:port"."""
        if not isinstance(given, list):
            return given
        return [_from_address(one) if isinstance(one, str) else one for one in given]


def _from_address(address: str) -> dict[str, str]:
    host, _, port = address.removeprefix("http://").rstrip("/").rpartition(":")
    return {"host": host or "localhost", "port": port}


def read_config(path: str | Path) -> ServingConfig:
    """The checked content of a file. Raises ConfigurationError, which names file, line and key."""
    path = Path(path)
    source = str(path)
    data, lines = parse_with_lines(read_text(path, "give the path of a YAML file with a list of instances"), source)
    if not isinstance(data or {}, dict):
        raise ConfigurationError(f"{source} is not a mapping with a list of instances.", next_step=_NEXT_STEP)
    try:
        config = ServingConfig(**(data or {}))
    except (ValidationError, TypeError) as error:
        raise ConfigurationError(f"{source}{_problem(error, lines)}.", next_step=_NEXT_STEP) from None
    if config.predictions is not None:
        config.predictions = path.absolute().parent / config.predictions
    return config


def load_config(path: str | Path, scheduler: SwarmPilotScheduler) -> list[TaskInstance]:
    """Apply a file to a scheduler, and register its instances, also those that do not answer yet."""
    return scheduler.run(apply_config(read_config(path), scheduler))


async def apply_config(config: ServingConfig, scheduler: SwarmPilotScheduler) -> list[TaskInstance]:
    """As :func:`load_config`, for a checked configuration; with a journal as :func:`apply_settings`."""
    apply_settings(config, scheduler)
    return await asyncio.gather(*(scheduler.register_async(one) for one in config.instances))


def apply_settings(config: ServingConfig, scheduler: SwarmPilotScheduler) -> None:
    """Apply all but the instances. With a journal, remove those that the last configuration had and this one has not,
    and use the strategies that were set while the scheduler ran. Raises ConfigurationError."""
    if config.predictions is not None:
        scheduler.predictor.table = LookupPredictor(config.predictions)
    if config.strategy is not None:
        scheduler.set_strategy(config.strategy.create())
    for model, strategy in config.strategies.items():
        scheduler.set_strategy(strategy.create(), model)
    if config.max_waiting is not None:
        scheduler.max_waiting = config.max_waiting
    if config.task_timeout_s is not None:
        scheduler.task_timeout_s = config.task_timeout_s
    if scheduler.journal is not None:
        _remove_dropped(config, scheduler, scheduler.journal)
        for of, name in scheduler.journal.strategies().items():
            try:
                scheduler.set_strategy(name, of)
            except ConfigurationError as error:
                _log.warning("the strategy %s that was set for %s is not used: %s", name, of or "all models", error)


def _remove_dropped(config: ServingConfig, scheduler: SwarmPilotScheduler, journal: TaskJournal) -> None:
    addresses = [address_of(one.host, one.port) for one in config.instances]
    kept = {scheduler.instance_uuid(one) for one in addresses}
    for one in journal.configured():
        uuid = scheduler.instance_uuid(one)
        if uuid is not None and uuid not in kept:
            _log.info("the instance %s is removed: the configuration does not have it any more", one)
            scheduler.remove_instance(uuid)
    if addresses != journal.configured():
        journal.save_configured(addresses)


def _problem(error: ValidationError | TypeError, lines: LineIndex) -> str:
    if isinstance(error, TypeError):
        return ": a key is not text"
    first = error.errors(include_url=False)[0]
    line = lines.line_of(first["loc"])
    place = f", line {line}: " if line else ": "
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known = _ConfiguredInstance.model_fields if first["loc"][0] == "instances" else ServingConfig.model_fields
        return f"{place}{key}: unknown key{did_you_mean(str(first['loc'][-1]), known)}"
    return f"{place}{key}: {first['msg'].removeprefix('Value error, ')}"
