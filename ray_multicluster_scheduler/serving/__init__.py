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
    InstanceKind,
    InstanceStatusResponse,
    QueueInfoItem,
    QueueSubmitRequest,
    QueueSubmitResponse,
    SchedulerRequest,
    SchedulerResponse,
    TaskQueryResponse,
    TaskStatus,
    TIRegisterRequest,
    TIRegisterResponse,
    TIRemoveRequest,
    TIRemoveResponse,
)
from ray_multicluster_scheduler.serving.predictor import LookupPredictor, Prediction
from ray_multicluster_scheduler.serving.strategies import BaseStrategy, Candidate, Choice, register_strategy
from ray_multicluster_scheduler.serving.task_tracker import TaskInfo, TaskTracker

__all__ = [
    "BaseStrategy",
    "Candidate",
    "Choice",
    "InstanceKind",
    "InstanceStatusResponse",
    "LookupPredictor",
    "Prediction",
    "QueueInfoItem",
    "QueueSubmitRequest",
    "QueueSubmitResponse",
    "SchedulerRequest",
    "SchedulerResponse",
    "SwarmPilotScheduler",
    "TIRegisterRequest",
    "TIRegisterResponse",
    "TIRemoveRequest",
    "TIRemoveResponse",
    "TaskInfo",
    "TaskInstance",
    "TaskInstanceClient",
    "TaskQueryResponse",
    "TaskStatus",
    "TaskTracker",
    "load_config",
    "register_strategy",
]
