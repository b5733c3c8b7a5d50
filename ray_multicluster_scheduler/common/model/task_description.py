"""TaskDescription: one item of work as it was submitted, be it a task, an actor, a job or a gang."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any, Literal, Self, get_origin

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model.actor_description import ActorDescription
from ray_multicluster_scheduler.common.model.checks import plain_number
from ray_multicluster_scheduler.common.model.gang_description import GangDescription, GangShape
from ray_multicluster_scheduler.common.model.item_fields import (
    ALL_KINDS,
    NOT_ACTORS,
    ClassNames,
    Count,
    FieldSpec,
    Flag,
    Id,
    ItemIds,
    Kind,
    Labels,
    Name,
    Paths,
    Priority,
    ResourceAmounts,
    RuntimeEnv,
    Seconds,
    Text,
    Texts,
    Time,
    fields_of,
)
from ray_multicluster_scheduler.common.model.job_description import JobDescription
from ray_multicluster_scheduler.common.model.resources import Resources, at_least

Fallback = Literal["any", "wait"]
Keep = Literal["cluster"]
POOL_FIELDS = ("labels", "pool", "preemptible", "min_runtime_s")
"""The fields that pools and preemption read. What shows an item shows those that are set."""


@dataclass(frozen=True, slots=True)
class TaskDescription:
    """Everything the scheduler knows of an item. It never changes after acceptance.

    The code and the arguments are not in here: digests name the payloads that hold them.
    """

    id: Annotated[Id, FieldSpec("Unique for ever; generated if none is given.", ("job",), "submission_id")]
    kind: Annotated[Kind, FieldSpec("What it is.")]
    name: Annotated[
        Text,
        FieldSpec("Its name, by default that of its function or command; `get_actor` finds an actor by it.", ALL_KINDS),
    ]
    requirements: Annotated[
        ResourceAmounts,
        FieldSpec(
            "Resources that are reserved for it: on one node; for a job, on its cluster.",
            ("task", "actor", "job"),
            "resource_requirements",
        ),
    ] = field(default_factory=dict)
    tags: Annotated[Texts, FieldSpec("Clusters with these tags are preferred.", ALL_KINDS)] = ()
    require_tags: Annotated[Texts, FieldSpec("Only clusters with all of these tags are considered.", ALL_KINDS)] = ()
    preferred_cluster: Annotated[Text | None, FieldSpec("The cluster to be used if it can be.", ALL_KINDS)] = None
    fallback: Annotated[
        Fallback, FieldSpec("any: other clusters are used if the preferred one has no room; wait: none is.", ALL_KINDS)
    ] = "any"
    allow_clusters: Annotated[Texts | None, FieldSpec("Only these clusters are considered.", ALL_KINDS)] = None
    deny_clusters: Annotated[Texts, FieldSpec("These clusters are not considered.", ALL_KINDS)] = ()
    priority: Annotated[Priority, FieldSpec("Higher numbers go first.", ALL_KINDS)] = 0
    owner: Annotated[
        Text, FieldSpec("Its owner, for fair shares, limits and access; by default the user who submits it.", ALL_KINDS)
    ] = ""
    retries: Annotated[
        Count, FieldSpec("How often it is repeated after its own code failed.", NOT_ACTORS, setting=True)
    ] = 0
    crash_retries: Annotated[
        Count,
        FieldSpec(
            "How often it is repeated after its worker or node died; of an actor, until it is ready.",
            ALL_KINDS,
            setting=True,
        ),
    ] = 3
    lost_retries: Annotated[
        Count,
        FieldSpec(
            "How often it is repeated after its cluster was lost; of an actor, until it is ready.",
            ALL_KINDS,
            setting=True,
        ),
    ] = 3
    retry_on: Annotated[
        ClassNames | None,
        FieldSpec("Only these exceptions of its code are retried: classes, or their names.", NOT_ACTORS),
    ] = None
    no_retry_on: Annotated[ClassNames, FieldSpec("These exceptions of its code are not retried.", NOT_ACTORS)] = ()
    retry_lost: Annotated[
        Flag, FieldSpec("Run it once more if its cluster is lost, though it may still run there.", ("job",))
    ] = False
    run_timeout: Annotated[
        Seconds | None, FieldSpec("The most seconds that an attempt may run; then it is ended.", NOT_ACTORS)
    ] = None
    queue_timeout: Annotated[
        Seconds | None, FieldSpec("The most seconds that it may wait; then it fails.", ALL_KINDS)
    ] = None
    idempotency_key: Annotated[
        Text | None, FieldSpec("Submitting it again with the same key of the same owner is the same item.", NOT_ACTORS)
    ] = None
    content_key: Annotated[Text | None, FieldSpec("Of items with one key, one at a time is run.")] = None
    after: Annotated[
        ItemIds,
        FieldSpec(
            "Items that have to succeed first, by id; programs may give handles. One that fails, fails this one.",
            ALL_KINDS,
        ),
    ] = ()
    start_after: Annotated[
        Time | None,
        FieldSpec(
            "The time before which it is not queued; programs may give seconds from now, or a datetime.", ALL_KINDS
        ),
    ] = None
    runtime_env: Annotated[
        RuntimeEnv, FieldSpec("Ray's runtime environment: packages, folders, variables.", ALL_KINDS)
    ] = field(default_factory=dict)
    function_digest: Annotated[Text | None, FieldSpec("The payload that holds its pickled code.")] = None
    arguments_digest: Annotated[Text | None, FieldSpec("The payload that holds its pickled arguments.")] = None
    arguments_bytes: Annotated[Count, FieldSpec("How large its pickled arguments are.")] = 0
    home_paths: Annotated[
        Paths, FieldSpec("Arguments that begin with a home directory, which is another one on its cluster.")
    ] = ()
    job: Annotated[JobDescription | None, FieldSpec("What only a job has.")] = None
    actor: Annotated[ActorDescription | None, FieldSpec("What only an actor has.")] = None
    gang: Annotated[GangDescription | None, FieldSpec("What only a gang has.")] = None
    submitted_at: Annotated[Time, FieldSpec("When it was submitted.")] = 0.0
    program: Annotated[
        Text | None, FieldSpec("The program with whose end it ends, where that is not the control plane's.")
    ] = None
    keep: Annotated[
        Keep | None,
        FieldSpec("cluster: a value of more than 1 MiB stays on its cluster until it is requested.", ("task",)),
    ] = None
    streams: Annotated[Flag, FieldSpec("Its code is a generator, whose values are read while it runs.")] = False
    labels: Annotated[
        Labels,
        FieldSpec(
            'Labels of the item, such as {"team": "nlp"} (tags describe clusters): they choose a pool and decide who '
            "may preempt whom.",
            ALL_KINDS,
        ),
    ] = field(default_factory=dict)
    pool: Annotated[
        Name | None, FieldSpec("The pool whose quota it uses; by default that of its labels or its owner.", ALL_KINDS)
    ] = None
    preemptible: Annotated[
        Flag | None,
        FieldSpec(
            "Whether it may be stopped for the sake of other work, and run again later; by default as its pool says, "
            "else no.",
            ALL_KINDS,
        ),
    ] = None
    min_runtime_s: Annotated[
        Seconds | None,
        FieldSpec("The seconds that each of its attempts runs before it may be preempted.", ALL_KINDS),
    ] = None
    repeats: Annotated[
        Text | None, FieldSpec("The item that it is a retry of; the route retry sets it.", internal=True)
    ] = None

    def __post_init__(self) -> None:
        if isinstance(self.priority, float):
            object.__setattr__(self, "priority", plain_number(self.priority))
        if self.kind == "job" and self.job is None:
            raise ConfigurationError(
                f"job {self.id} has no entrypoint.",
                task_id=self.id,
                next_step='give a shell command: {"job": {"entrypoint": "python train.py"}}',
            )
        if (self.kind == "actor") != (self.actor is not None):
            raise self._part_mismatch("actor", '{"actor": {"ray_name": "…"}}')
        if (self.kind == "gang") != (self.gang is not None):
            raise self._part_mismatch("gang", '{"gang": {"members": […]}}')
        if self.keep is not None and self.kind != "task":
            raise ConfigurationError(
                f"{self.kind} {self.id} was given keep={self.keep!r}, which only a task can have.",
                task_id=self.id,
                next_step="leave keep out",
            )
        if self.fallback not in ("any", "wait"):
            raise ConfigurationError(
                f"fallback is {self.fallback!r}.", task_id=self.id, next_step='use "any" or "wait"'
            )
        for key in ("retries", "crash_retries", "lost_retries"):
            if getattr(self, key) < 0:
                raise ConfigurationError(
                    f"{key} is {getattr(self, key)!r}.", task_id=self.id, next_step="give a whole number, 0 or more"
                )
        for key in ("run_timeout", "queue_timeout", "min_runtime_s"):
            value = getattr(self, key)
            if value is not None and not value > 0:
                raise ConfigurationError(
                    f"{key} is {value!r}.", task_id=self.id, next_step="give seconds above 0, or leave it out"
                )

    def _part_mismatch(self, part: str, example: str) -> ConfigurationError:
        if self.kind == part:
            sentence, step = f'has no field "{part}", which describes it', f"give it: {example}"
        else:
            sentence, step = f'has the field "{part}" of another kind', f'leave "{part}" out, or give the kind {part}'
        return ConfigurationError(f"{self.kind} {self.id} {sentence}.", task_id=self.id, next_step=step)

    @property
    def placement(self) -> Resources:
        """The resources that must be free where it is placed: an actor may hold less once it is ready; a job's
        requirements include its entrypoint's."""
        if self.job is not None and self.job.entrypoint_resources:
            return at_least(self.requirements, self.job.entrypoint_resources)
        return self.requirements if self.actor is None else self.actor.placement

    @property
    def entrypoint_resources(self) -> Resources:
        """Of a job: the part that must be free on one node, for the process of its entrypoint. Of others: nothing."""
        return {} if self.job is None else self.job.entrypoint_resources

    @property
    def base_kind(self) -> str:
        """Its kind, where a gang counts as what its members are: task or actor."""
        return self.kind if self.gang is None else self.gang.of

    @property
    def kind_with_article(self) -> str:
        """For sentences: a task, an actor, a job, a gang."""
        return f"{'an' if self.kind == 'actor' else 'a'} {self.kind}"

    @property
    def runs_actors(self) -> bool:
        """Whether it is an actor or a gang of actors: it runs until it is ended, and others call it."""
        return self.base_kind == "actor"

    @property
    def connects_only(self) -> bool:
        """Whether it starts no work, but finds an actor that exists (``adopt``) or passes calls on (``relay``). What
        keeps new work away from a cluster does not apply to it: work that runs there may wait for its answers."""
        actor = self.actor
        return actor is not None and (actor.adopt or actor.relay) and not (self.requirements or actor.placement)

    @property
    def ready_timeout(self) -> float | None:
        """Of actors: seconds from when a cluster took them until they are ready."""
        if self.gang is not None:
            return self.gang.ready_timeout
        return None if self.actor is None else self.actor.ready_timeout

    @property
    def gang_shape(self) -> GangShape | None:
        """The properties of a gang that placement reads; None for other kinds."""
        return None if self.gang is None else self.gang.shape

    @property
    def pool_fields(self) -> dict[str, Any]:
        """Those of POOL_FIELDS that are set, by name."""
        values = {"labels": dict(self.labels), **{name: getattr(self, name) for name in POOL_FIELDS[1:]}}
        return {name: value for name, value in values.items() if value not in (None, {})}

    @property
    def payload_digests(self) -> tuple[str | None, ...]:
        """The digests of its payloads, each as often as it is used."""
        if self.gang is None:
            return self.function_digest, self.arguments_digest
        return tuple(one for member in self.gang.members for one in (member.function_digest, member.arguments_digest))

    def to_dict(self) -> dict[str, Any]:
        data = {name: getattr(self, name) for name in _FIELDS}
        for name in ("requirements", "runtime_env", "labels"):
            data[name] = dict(data[name])
        for name in ("job", "actor", "gang"):
            if data[name] is not None:
                data[name] = asdict(data[name])
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        fields = dict(data)
        for key in _sequences():
            if fields.get(key) is not None:
                fields[key] = tuple(fields[key])
        if fields.get("job") is not None:
            fields["job"] = JobDescription.from_dict(fields["job"])
        if fields.get("actor") is not None:
            fields["actor"] = ActorDescription.from_dict(fields["actor"])
        if fields.get("gang") is not None:
            fields["gang"] = GangDescription.from_dict(fields["gang"])
        return cls(**fields)


_FIELDS = tuple(one.name for one in fields(TaskDescription))


@functools.cache
def _sequences() -> tuple[str, ...]:
    """The fields that are lists in JSON."""
    return tuple(one.name for one in fields_of(TaskDescription).values() if get_origin(one.type) is tuple)


_CONTENT_FIELDS = (
    "kind",
    "owner",
    "function_digest",
    "arguments_digest",
    "requirements",
    "runtime_env",
    "job",
    "gang",
    "tags",
    "require_tags",
    "preferred_cluster",
    "fallback",
    "allow_clusters",
    "deny_clusters",
    "after",
    "start_after",
    "keep",
    *POOL_FIELDS,
)
"""Fields by which two items differ. Names, priorities, retries and time limits do not: the first one's hold for both.
Pool, labels and what protects from preemption do: an item uses its own quota, and is stopped only as it permits."""


def content_key(task: TaskDescription, sources: Sequence[str] = ()) -> str:
    """Hash of everything that makes two items differ. ``sources`` name the values that replace handles among its
    arguments, in order."""
    whole = task.to_dict()
    content = [[name, whole[name]] for name in _CONTENT_FIELDS]
    text = json.dumps([*content, list(sources)], sort_keys=True, default=repr)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
