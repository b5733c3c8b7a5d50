"""One item of work, as accepted: a task, an actor, a job or a gang."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, Self

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model.actor_description import ActorDescription
from ray_multicluster_scheduler.common.model.gang_description import GangDescription, GangShape
from ray_multicluster_scheduler.common.model.job_description import JobDescription
from ray_multicluster_scheduler.common.model.resources import Resources, at_least

Kind = Literal["task", "actor", "job", "gang"]
Fallback = Literal["any", "wait"]
Keep = Literal["cluster"]

RESERVED_IDS = frozenset({"all", "last"})
"""By these, commands mean other items: none is called so."""
MOST_PRIORITY = 1_000_000
"""No item waits with more, nor with less than the negative of it: a million steps of ageing are enough for anybody."""


@dataclass(frozen=True, slots=True)
class TaskDescription:
    """Everything the brain knows of an item. It never changes after acceptance.

    The code and the arguments are not in here: ``function_digest`` and ``arguments_digest`` name blobs
    that the payload cache holds. ``requirements`` is what the ledger reserves and Ray is asked for.
    ``home_paths`` are arguments that begin with somebody's home directory; they follow the item to its cluster.
    ``after`` are items that have to succeed first, ``start_after`` is the time before which it is not queued.
    Of items with one ``content_key``, one at a time is run. ``program`` is whose end is its end, where that is another
    process than the control plane's. ``keep="cluster"``: a large value stays in the cluster until it is asked for.
    ``repeats`` is the item that this one is a retry of, if somebody asked for one.
    """

    id: str
    kind: Kind
    name: str
    requirements: Resources = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    require_tags: tuple[str, ...] = ()
    preferred_cluster: str | None = None
    fallback: Fallback = "any"
    allow_clusters: tuple[str, ...] | None = None
    deny_clusters: tuple[str, ...] = ()
    priority: int = 0
    owner: str = ""
    retries: int = 0
    crash_retries: int = 3
    lost_retries: int = 3
    retry_on: tuple[str, ...] | None = None
    no_retry_on: tuple[str, ...] = ()
    retry_lost: bool = False
    run_timeout: float | None = None
    queue_timeout: float | None = None
    idempotency_key: str | None = None
    content_key: str | None = None
    after: tuple[str, ...] = ()
    start_after: float | None = None
    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    function_digest: str | None = None
    arguments_digest: str | None = None
    arguments_bytes: int = 0
    home_paths: tuple[str, ...] = ()
    job: JobDescription | None = None
    actor: ActorDescription | None = None
    gang: GangDescription | None = None
    submitted_at: float = 0.0
    program: str | None = None
    keep: Keep | None = None
    repeats: str | None = None

    def __post_init__(self) -> None:
        if self.kind == "job" and self.job is None:
            raise ConfigurationError(
                f"job {self.id} has no entrypoint.",
                task_id=self.id,
                next_step='give a shell command: {"job": {"entrypoint": "python train.py"}}',
            )
        if (self.kind == "actor") != (self.actor is not None):
            raise self._half("actor", '{"actor": {"ray_name": "…"}}')
        if (self.kind == "gang") != (self.gang is not None):
            raise self._half("gang", '{"gang": {"members": […]}}')
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
        for key in ("run_timeout", "queue_timeout"):
            value = getattr(self, key)
            if value is not None and not value > 0:
                raise ConfigurationError(
                    f"{key} is {value!r}.", task_id=self.id, next_step="give seconds above 0, or None for no limit"
                )

    def _half(self, what: str, how: str) -> ConfigurationError:
        if self.kind == what:
            article = "an" if what == "actor" else "a"
            said, step = f"does not say what {article} {what} has to say", f"give it: {how}"
        else:
            said, step = f'says what only a {what} can: "{what}"', f'leave "{what}" out, or give the kind {what}'
        return ConfigurationError(f"{self.kind} {self.id} {said}.", task_id=self.id, next_step=step)

    @property
    def placement(self) -> Resources:
        """What must be free where it is placed; an actor may hold less once it is ready, a job's entrypoint is a part
        of the job."""
        if self.job is not None and self.job.entrypoint_resources:
            return at_least(self.requirements, self.job.entrypoint_resources)
        return self.requirements if self.actor is None else self.actor.placement

    @property
    def entrypoint_resources(self) -> Resources:
        """Of a job: what of it must be free on one node, as Ray holds it for one process; of others nothing."""
        return {} if self.job is None else self.job.entrypoint_resources

    @property
    def ruled_as(self) -> str:
        """The kind whose rules hold for it: a gang of tasks is one task to them, a gang of actors one actor."""
        return self.kind if self.gang is None else self.gang.of

    @property
    def one_of_its_kind(self) -> str:
        """For the middle of a sentence: a task, an actor, a job, a gang."""
        return f"{'an' if self.kind == 'actor' else 'a'} {self.kind}"

    @property
    def serves(self) -> bool:
        """Is it an actor, or a gang of them? Then it runs from when it is ready until its end, and others call it."""
        return self.ruled_as == "actor"

    @property
    def ready_timeout(self) -> float | None:
        """Of what serves: seconds from when a cluster took it until it is ready."""
        if self.gang is not None:
            return self.gang.ready_timeout
        return None if self.actor is None else self.actor.ready_timeout

    @property
    def bundles(self) -> GangShape | None:
        """What makes gangs differ for placement, beside what makes any two items differ; None for what is no gang."""
        return None if self.gang is None else self.gang.shape

    @property
    def payloads(self) -> tuple[str | None, ...]:
        """The digests of all that the payload cache holds for it, one for each time that it does."""
        if self.gang is None:
            return self.function_digest, self.arguments_digest
        return tuple(one for member in self.gang.members for one in (member.function_digest, member.arguments_digest))

    def to_dict(self) -> dict[str, Any]:
        said = {name: getattr(self, name) for name in _FIELDS}
        for name in ("requirements", "runtime_env"):
            said[name] = dict(said[name])
        for name in ("job", "actor", "gang"):
            if said[name] is not None:
                said[name] = asdict(said[name])
        return said

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        fields = dict(data)
        for key in (
            "tags",
            "require_tags",
            "deny_clusters",
            "no_retry_on",
            "allow_clusters",
            "retry_on",
            "home_paths",
            "after",
        ):
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
