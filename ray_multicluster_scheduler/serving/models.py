"""Pydantic models of all requests and answers of the serving API, and of the Python calls that share them."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, model_validator
from pydantic_core import to_json


def _strict(value: JsonValue) -> JsonValue:
    """Refuse what Python's parser accepts and JSON does not have: NaN, Infinity and halves of characters."""
    json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    return value


def _printable(value: JsonValue) -> JsonValue:
    """Refuse what no answer could show later: halves of characters, and the deepest levels that a parser accepts."""
    to_json([[[[value]]]])
    return value


def _number(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("it is no number")
    return value


Input = Annotated[JsonValue, AfterValidator(_strict)]
Result = Annotated[JsonValue, AfterValidator(_printable)]
Milliseconds = Annotated[float, Field(ge=0, le=1e12, description="ms")]
MAX_CONCURRENCY = 100_000
Count = Annotated[int, BeforeValidator(_number), Field(ge=0, le=MAX_CONCURRENCY)]
BootId = Annotated[str, Field(min_length=1, max_length=200)]


class TaskStatus(StrEnum):
    """State of a task: queued → scheduled → completed or failed."""

    QUEUED = "queued"
    """It waits, for an instance of its model or for a free slot of the chosen one."""
    SCHEDULED = "scheduled"
    """It was forwarded to its instance."""
    COMPLETED = "completed"
    FAILED = "failed"

    __hash__ = str.__hash__  # that of Enum is Python code, and counts are kept by state

    @property
    def finished(self) -> bool:
        return self is TaskStatus.COMPLETED or self is TaskStatus.FAILED


class InstanceKind(StrEnum):
    """The protocol that an instance speaks."""

    QUEUE = "queue"
    """GET /info and POST /queue/submit; it reports results to the scheduler, or returns them in its answer."""
    OPENAI = "openai"
    """GET /v1/models and the other routes of an OpenAI-style server."""


class _Model(BaseModel):
    model_config = ConfigDict(protected_namespaces=())  # fields such as model_name are part of the API


# ---- Python


class SchedulerRequest(_Model):
    """A request for any instance of a model. Numbers in ``metadata`` are features of the time prediction."""

    model_type: str = Field(min_length=1)
    input_data: JsonValue = None
    metadata: dict[str, JsonValue] = Field(default_factory=dict)
    task_id: str | None = Field(default=None, min_length=1, max_length=200)


class SchedulerResponse(_Model):
    """Where a request was sent. ``instance_id`` is None while no instance of its model is available."""

    task_id: str
    instance_id: str | None = None
    reason: str = ""


class InstanceStatusResponse(_Model):
    """What an instance reports about itself."""

    instance_id: str
    model_type: str | None = None
    replicas_running: Count = 0
    queue_size: Annotated[int, Field(ge=0)] = 0
    status: str = "unknown"
    boot_id: BootId | None = None


class InstanceSubmitResponse(_Model):
    """An instance's answer to a submitted task: an acknowledgement, or the result at once."""

    model_config = ConfigDict(protected_namespaces=(), extra="ignore")

    task_id: str | None = None
    status: str = "success"
    message: str | None = None
    result: Result = None
    error: str | None = None
    execution_time: Milliseconds | None = None

    @property
    def finished(self) -> bool:
        """Whether the answer already has the result or the error."""
        return self.error is not None or "result" in self.model_fields_set


# ---- instances


def address_of(host: str | None, port: int | None) -> str:
    """host:port, as an instance is called."""
    return f"[{host}]:{port}" if host and ":" in host else f"{host}:{port}"


class InstanceAddress(_Model):
    """Where an instance listens."""

    host: str = Field(min_length=1, max_length=255, pattern=r"^[^\s\x00/?#@\\\[\]]+$")
    port: int = Field(ge=1, le=65535)


class InstanceSettings(InstanceAddress):
    """What is known of an instance. Without ``model_name`` it is asked for it."""

    model_name: str | None = Field(default=None, min_length=1)
    hardware: str | None = None
    software_name: str | None = None
    software_version: str | None = None
    concurrency: int | None = Field(
        default=None, ge=1, le=MAX_CONCURRENCY, description="requests that it serves at the same time"
    )
    weight: float = Field(default=1.0, gt=0, le=1e6, description="share of requests under the strategy `weighted`")
    kind: InstanceKind = InstanceKind.QUEUE


class TIRegisterRequest(InstanceSettings):
    """POST /ti/register."""

    boot_id: BootId | None = Field(default=None, description="another one after each start of the instance")


class TIRegisterResponse(_Model):
    status: Literal["success"] = "success"
    message: str
    ti_uuid: str


class TIRemoveRequest(_Model):
    """POST /ti/remove: by ``ti_uuid``, or by ``host`` and ``port``."""

    ti_uuid: str | None = None
    host: str | None = Field(default=None, examples=["127.0.0.1"])
    port: int | None = Field(default=None, examples=[9001])
    drain: bool = Field(default=True, description="let the tasks that run there finish")

    @model_validator(mode="after")
    def _one_instance(self) -> TIRemoveRequest:
        if self.ti_uuid is None and (self.host is None or self.port is None):
            raise ValueError("give ti_uuid, or host and port")
        return self


class TIRemoveResponse(_Model):
    status: Literal["success"] = "success"
    message: str
    ti_uuid: str


# ---- tasks


class BatchTaskItem(_Model):
    task_input: Input
    metadata: dict[str, Input] = Field(default_factory=dict)
    task_id: str | None = Field(default=None, min_length=1, max_length=200)


class QueueSubmitRequest(BatchTaskItem):
    """POST /queue/submit."""

    model_name: str = Field(min_length=1)


class QueueSubmitResponse(_Model):
    """``scheduled_ti`` is empty while no instance of the model is available."""

    status: Literal["success"] = "success"
    task_id: str
    scheduled_ti: str


class QueueBatchSubmitRequest(_Model):
    """POST /queue/submit_batch."""

    model_name: str = Field(min_length=1)
    tasks: list[BatchTaskItem]


class BatchTaskResult(_Model):
    index: int
    status: Literal["success", "error"]
    task_id: str | None = None
    scheduled_ti: str | None = None
    error: str | None = None


class QueueBatchSubmitResponse(_Model):
    status: Literal["success", "partial", "error"]
    total_tasks: int
    successful_tasks: int
    failed_tasks: int
    results: list[BatchTaskResult]


class QueueInfoItem(_Model):
    """One instance's queue: the expected remaining time of what is charged there, and its standard deviation."""

    model_name: str
    ti_uuid: str
    address: str = Field(description="host:port")
    waiting_time_expect: float = Field(description="ms")
    waiting_time_error: float = Field(description="ms")
    length: int = Field(description="tasks that are charged there, running ones included")
    running: int
    healthy: bool
    relative_error: float | None = Field(default=None, description="of predicted times; null: none yet")
    within_p90: float | None = Field(
        default=None, description="the part of recent requests that was faster than its stated p90"
    )


class QueueInfoResponse(_Model):
    status: Literal["success"] = "success"
    queues: list[QueueInfoItem]


class TaskQueryResponse(_Model):
    task_id: str
    task_status: TaskStatus
    scheduled_ti: str
    submit_time: float = Field(description="seconds since the epoch")
    model_name: str
    reason: str | None = Field(default=None, description="why it waits")
    result: JsonValue = None
    error: str | None = None


class CandidateExplanation(_Model):
    """What was known of one instance when the choice was made."""

    instance: str
    wait_ms: float = Field(description="the expected time of what was charged there")
    predicted_ms: float | None = Field(default=None, description="of the task itself; none: nothing was known")
    charged_tasks: int


class ChoiceExplanation(_Model):
    strategy: str
    instance: str
    reason: str
    candidates: list[CandidateExplanation]


class TaskExplainResponse(_Model):
    """Why a task is where it is."""

    task_id: str
    model: str
    state: TaskStatus
    instance: str | None = None
    reason: str
    decision: ChoiceExplanation | None = None


class V1Model(_Model):
    """GET /v1/models/{id}, in the shape of OpenAI's API."""

    id: str
    object: Literal["model"] = "model"
    owned_by: str = "ray_multicluster_scheduler"


class V1ModelsResponse(_Model):
    """GET /v1/models, in the shape of OpenAI's API."""

    object: Literal["list"] = "list"
    data: list[V1Model]


class AllTasksResponse(_Model):
    """One page; ``next`` is the cursor of the following one."""

    total_tasks: int
    tasks: list[TaskQueryResponse]
    next: str | None = None


class ClearTasksResponse(_Model):
    status: Literal["success"] = "success"
    cleared: int


class TaskCompletionNotification(_Model):
    """POST /notify/task_complete and POST /result/submit, from an instance (its "host:port" or UUID)."""

    task_id: str
    instance_id: str
    execution_time: Milliseconds | None = None
    result: Result = None
    error: str | None = None


class ResultSubmitResponse(_Model):
    status: Literal["success"] = "success"
    message: str


# ---- the scheduler


class SetStrategyRequest(_Model):
    """POST /scheduler/set: for one model, or without ``model_name`` for all that have no strategy of their own."""

    name: str = Field(examples=["shortest_queue"])
    model_name: str | None = None


class SetStrategyResponse(_Model):
    status: Literal["success"] = "success"
    message: str = "OK"


class DeploymentOptions(_Model):
    """A deployment: replicas of a class as actors. Its name is that of its model."""

    name: str = Field(pattern=r"^[A-Za-z0-9][\w.-]{0,99}$", examples=["ocr"])
    replicas: int = Field(1, ge=0, le=10_000)
    max_batch: int = Field(1, ge=1, le=10_000, description="inputs that the class takes at once, as a list")
    batch_wait_ms: float = Field(5.0, ge=0, le=60_000, description="how long a request waits for others")
    concurrency: int = Field(1, ge=1, le=10_000, description="calls that a replica runs at the same time")


class ReplicaStatus(_Model):
    id: str = Field(description="the item of its actor")
    cluster: str | None
    state: str = Field(description="as of the item, or DRAINING")
    reason: str
    instance: str | None = Field(description="the UUID of its instance, once it runs")
    length: int = Field(description="requests that are charged there")
    waiting_time_expect: float = Field(description="ms")
    relative_error: float | None = Field(description="of predicted times; null: none yet")
    within_p90: float | None = Field(description="the part of recent requests that was faster than its stated p90")


class DeploymentStatus(DeploymentOptions):
    owner: str = ""
    state: Literal["RUNNING", "STARTING", "DELETING", "RETRYING"] = Field(
        description="RETRYING: the service failed to start, end or register replicas; the problem says why"
    )
    running: int
    problem: str = Field(description="why the last replica ended by itself, or could not be submitted")
    instances: list[ReplicaStatus]


class ModelInfo(_Model):
    model_name: str
    strategy: str
    instances: int
    healthy: int
    waiting: int
    running: int


class ModelsResponse(_Model):
    models: list[ModelInfo]


class HealthResponse(_Model):
    status: Literal["healthy"] = "healthy"
    instances: int
    healthy_instances: int
    waiting_tasks: int
