"""Routes inference requests: each goes to the instance of its model that is expected to finish it first.

An instance is a server of a model. ``SwarmPilotScheduler`` (``core.py``) chooses by a strategy (``strategies/``) from
what is charged to each instance and from predicted times (``predictor.py``), forwards (``router/``) and tracks
(``task_tracker.py``); ``journal.py`` keeps tasks and instances on disk. The package may import ``scheduler``,
``control_plane.config``, ``control_plane.store`` and ``common``. docs/serving.md shows its use; start reading with
``core.py``.
"""

from ray_multicluster_scheduler.serving.client import TaskInstance, TaskInstanceClient
from ray_multicluster_scheduler.serving.config import load_config
from ray_multicluster_scheduler.serving.core import SwarmPilotScheduler
from ray_multicluster_scheduler.serving.models import (
    AllTasksResponse,
    ClearTasksResponse,
    HealthResponse,
    InstanceKind,
    InstanceStatusResponse,
    ModelsResponse,
    QueueBatchSubmitRequest,
    QueueBatchSubmitResponse,
    QueueInfoItem,
    QueueInfoResponse,
    QueueSubmitRequest,
    QueueSubmitResponse,
    ResultSubmitResponse,
    SchedulerRequest,
    SchedulerResponse,
    SetStrategyRequest,
    SetStrategyResponse,
    TaskCompletionNotification,
    TaskQueryResponse,
    TaskStatus,
    TIRegisterRequest,
    TIRegisterResponse,
    TIRemoveRequest,
    TIRemoveResponse,
)
from ray_multicluster_scheduler.serving.predictor import LookupPredictor, Prediction
from ray_multicluster_scheduler.serving.strategies import (
    BaseStrategy,
    Candidate,
    Choice,
    JoinShortestQueueStrategy,
    PowerOfTwoStrategy,
    ProbabilisticStrategy,
    RoundRobinStrategy,
    ShortestQueueStrategy,
    WeightedStrategy,
    register_strategy,
)
from ray_multicluster_scheduler.serving.task_tracker import TaskInfo, TaskTracker

__all__ = [
    "AllTasksResponse",
    "BaseStrategy",
    "Candidate",
    "Choice",
    "ClearTasksResponse",
    "HealthResponse",
    "InstanceKind",
    "InstanceStatusResponse",
    "JoinShortestQueueStrategy",
    "LookupPredictor",
    "ModelsResponse",
    "PowerOfTwoStrategy",
    "Prediction",
    "ProbabilisticStrategy",
    "QueueBatchSubmitRequest",
    "QueueBatchSubmitResponse",
    "QueueInfoItem",
    "QueueInfoResponse",
    "QueueSubmitRequest",
    "QueueSubmitResponse",
    "ResultSubmitResponse",
    "RoundRobinStrategy",
    "SchedulerRequest",
    "SchedulerResponse",
    "SetStrategyRequest",
    "SetStrategyResponse",
    "ShortestQueueStrategy",
    "SwarmPilotScheduler",
    "TIRegisterRequest",
    "TIRegisterResponse",
    "TIRemoveRequest",
    "TIRemoveResponse",
    "TaskCompletionNotification",
    "TaskInfo",
    "TaskInstance",
    "TaskInstanceClient",
    "TaskQueryResponse",
    "TaskStatus",
    "TaskTracker",
    "WeightedStrategy",
    "load_config",
    "register_strategy",
]
