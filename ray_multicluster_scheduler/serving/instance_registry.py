"""InstanceRegistry: the instances of a scheduler, with the channel to each, by UUID and by address."""

from __future__ import annotations

import uuid as uuids
from collections.abc import Mapping
from typing import NamedTuple

from ray_multicluster_scheduler.common.exception import ConfigurationError, InstanceError, UnknownItemError
from ray_multicluster_scheduler.serving.client import TaskInstanceClient
from ray_multicluster_scheduler.serving.journal import TaskJournal
from ray_multicluster_scheduler.serving.models import MAX_CONCURRENCY, InstanceKind, ModelInfo, QueueInfoItem
from ray_multicluster_scheduler.serving.predictor import Accuracy
from ray_multicluster_scheduler.serving.router.forwarder import InstanceChannel, Reports
from ray_multicluster_scheduler.serving.router.ledger import Instance, Task
from ray_multicluster_scheduler.serving.router.router import Router

_OPENAI_CONCURRENCY = 64
_MAX_WEIGHT = 1e6


class Registration(NamedTuple):
    """What a registration says of an instance; None: what the instance itself reports."""

    kind: InstanceKind
    model_name: str | None
    concurrency: int | None
    weight: float | None
    hardware: Mapping[str, str]
    """hardware, software_name and software_version, where known."""
    boot_id: str | None = None


class InstanceRegistry:
    """The caller serialises all calls. Changes are written to the ``journal``, if there is one."""

    def __init__(self, router: Router, journal: TaskJournal | None, reports: Reports, health_interval_s: float) -> None:
        self._router, self._journal, self._reports = router, journal, reports
        self._health_interval_s = health_interval_s
        self.channels: dict[str, InstanceChannel] = {}
        """By UUID."""
        self._ids: dict[str, str] = {}
        """The UUID of each instance by "host:port"."""

    def find(self, name: str) -> str:
        """The UUID of an instance, by UUID or "host:port". Raises UnknownItemError."""
        found = self._ids.get(_same_name(name), name)
        if found not in self._router.instances:
            raise UnknownItemError(f"There is no instance {name}.", next_step="list them with queue_info()")
        return found

    def is_called(self, uuid: str | None, name: str | None) -> bool:
        """Whether ``name`` is the UUID or the address of this instance."""
        channel = self.channels.get(uuid or "")
        return name == uuid or (
            channel is not None and name is not None and _same_name(channel.client.instance_id) == _same_name(name)
        )

    def add(self, client: TaskInstanceClient, given: Registration) -> InstanceChannel:
        """Register an instance, or change one of the same address: it may serve another model now, or have restarted.
        Raises InstanceError, and ConfigurationError for numbers out of range."""
        concurrency, weight = given.concurrency, given.weight
        if not (concurrency is None or 1 <= concurrency <= MAX_CONCURRENCY) or not (
            weight is None or 0 < weight <= _MAX_WEIGHT
        ):
            raise ConfigurationError(
                f"{client.instance_id} has a concurrency or a weight out of range.",
                next_step=f"give a concurrency of 1 to {MAX_CONCURRENCY:,} and a weight above 0, up to {_MAX_WEIGHT:g}",
            )
        known = self._ids.get(_same_name(client.instance_id))
        if known is not None and not self._router.instances[known].draining:
            channel = self.channels[known]
            self._update(channel, client, given)
        else:
            if self._journal is not None:
                self._journal.check_writable()
            channel = self._register(str(uuids.uuid4()), client, given)
        self._save(channel.uuid)
        return channel

    def drain(self, uuid: str) -> list[Task]:
        """Give an instance no new tasks; returns those that run there."""
        running = self._router.drain(uuid)
        self._save(uuid)
        return running

    def forget_if_empty(self, uuid: str) -> InstanceChannel | None:
        """Drop an instance that is being removed and has no tasks left; returns its channel, to be ended."""
        instance = self._router.instances.get(uuid)
        if instance is None or not instance.draining or instance.length:
            return None
        self._router.forget_instance(uuid)
        channel = self.channels.pop(uuid)
        name = _same_name(channel.client.instance_id)
        if self._ids.get(name) == uuid:
            del self._ids[name]
        if self._journal is not None:
            self._journal.forget_instance(uuid)
        return channel

    def models(self) -> list[ModelInfo]:
        """The models that have instances or waiting tasks."""
        rows = []
        for model in sorted(self._router.models()):
            instances = list(self._router.instances_of(model))
            rows.append(
                ModelInfo(
                    model_name=model,
                    strategy=self._router.strategy_of(model).name,
                    instances=len(instances),
                    healthy=sum(one.accepts for one in instances),
                    waiting=sum(one.model == model for each in instances for one in each.waiting.values())
                    + len(self._router.unassigned.get(model, ())),
                    running=sum(one.model == model for each in instances for one in each.running.values()),
                )
            )
        return rows

    def queue_info(
        self, model: str | None, now: float, accuracy: Mapping[tuple[str, str], Accuracy]
    ) -> list[QueueInfoItem]:
        """The queue of each instance (of one model). ``accuracy``: of its predictions, by model and instance."""
        rows = []
        for instance in self._router.instances.values():
            mean, variance = instance.backlog(now)
            rows += [
                QueueInfoItem(
                    model_name=name,
                    ti_uuid=instance.uuid,
                    address=self.channels[instance.uuid].client.instance_id,
                    waiting_time_expect=mean,
                    waiting_time_error=variance**0.5,
                    length=instance.length,
                    running=len(instance.running),
                    healthy=instance.accepts,
                    relative_error=None if known is None else known.relative_error,
                    within_p90=None if known is None else known.covered,
                )
                for name in instance.models or ("",)  # not known before its first answer
                if model in {None, name}
                for known in (accuracy.get((name, instance.uuid)),)
            ]
        return rows

    def restore(self) -> None:
        """Register the instances of the journal, under the same UUIDs. Raises StoreError."""
        assert self._journal is not None
        for uuid, kept in self._journal.instances().items():
            client = TaskInstanceClient(kept.pop("url"), addresses=kept.pop("addresses"))
            draining = kept.pop("draining")
            self._register(uuid, client, Registration(**{**kept, "kind": InstanceKind(kept["kind"])}))
            self._router.instances[uuid].draining = draining

    def _register(self, uuid: str, client: TaskInstanceClient, given: Registration) -> InstanceChannel:
        instance = Instance(
            uuid=uuid,
            models=(given.model_name,) if given.model_name else (),
            concurrency=given.concurrency or (_OPENAI_CONCURRENCY if given.kind is InstanceKind.OPENAI else 1),
            weight=given.weight or 1.0,
            openai=given.kind is InstanceKind.OPENAI,
            hardware=dict(given.hardware),
            healthy=False,
        )
        self._router.add_instance(instance)
        self._ids[_same_name(client.instance_id)] = uuid
        channel = self.channels[uuid] = InstanceChannel(
            uuid, client, given.kind, self._reports, self._health_interval_s
        )
        channel.model, channel.concurrency, channel.boot_id = given.model_name, given.concurrency, given.boot_id
        return channel

    def _update(self, channel: InstanceChannel, client: TaskInstanceClient, given: Registration) -> None:
        if given.kind is not channel.kind:
            raise InstanceError(
                f"{channel.client.instance_id} is registered with kind {channel.kind}.", next_step="remove it first"
            )
        instance, model = self._router.instances[channel.uuid], given.model_name
        instance.hardware.update(given.hardware)
        instance.weight = given.weight or instance.weight
        if client.addresses:
            channel.client.use_addresses(client.addresses)
        if given.concurrency is not None:
            channel.concurrency = given.concurrency
            self._router.set_concurrency(channel.uuid, given.concurrency)
        if model is not None and instance.models != (model,):
            channel.model = model
            self._router.set_models(channel.uuid, (model,))
        channel.registered_again(given.boot_id)

    def _save(self, uuid: str) -> None:
        if self._journal is not None:
            self._journal.save_instance(self.channels[uuid], self._router.instances[uuid])


def _same_name(address: str) -> str:
    """The same for all names of one address."""
    return address.lower().replace("localhost:", "127.0.0.1:", 1)
