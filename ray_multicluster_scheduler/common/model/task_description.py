"""One item of work, as accepted: a task, an actor or a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model.actor_description import ActorDescription
from ray_multicluster_scheduler.common.model.job_description import JobDescription
from ray_multicluster_scheduler.common.model.resources import Resources

Kind = Literal["task", "actor", "job"]
Fallback = Literal["any", "wait"]


@dataclass(frozen=True, slots=True)
class TaskDescription:
    """Everything the brain knows of an item. It never changes after acceptance.

    The code and the arguments are not in here: ``function_digest`` and ``arguments_digest`` name blobs
    that the payload shelf holds. ``requirements`` is what the ledger reserves and Ray is asked for.
    ``home_paths`` are arguments that begin with somebody's home directory; they follow the item to its cluster.
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
    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    function_digest: str | None = None
    arguments_digest: str | None = None
    arguments_bytes: int = 0
    home_paths: tuple[str, ...] = ()
    job: JobDescription | None = None
    actor: ActorDescription | None = None
    submitted_at: float = 0.0

    def __post_init__(self) -> None:
        if self.kind == "job" and self.job is None:
            raise ConfigurationError(f"job {self.id} has no entrypoint.", task_id=self.id)
        if (self.kind == "actor") != (self.actor is not None):
            raise ConfigurationError(f"{self.kind} {self.id} is half an actor.", task_id=self.id)
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

    @property
    def placement(self) -> Resources:
        """What must be free where it is placed; an actor may hold less once it is ready."""
        return self.requirements if self.actor is None else self.actor.placement

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        fields = dict(data)
        for key in ("tags", "require_tags", "deny_clusters", "no_retry_on", "allow_clusters", "retry_on", "home_paths"):
            if fields.get(key) is not None:
                fields[key] = tuple(fields[key])
        if fields.get("job") is not None:
            fields["job"] = JobDescription.from_dict(fields["job"])
        if fields.get("actor") is not None:
            fields["actor"] = ActorDescription.from_dict(fields["actor"])
        return cls(**fields)
