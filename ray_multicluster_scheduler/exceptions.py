"""For programs that used ``ray.exceptions``: Ray's names for what the verbs raise here.

Several names mean one class where Ray distinguishes more than we do. NeverRaised stands for errors that cannot happen
here.
"""

from __future__ import annotations

from ray_multicluster_scheduler.common.exception import (
    ActorDiedError,
    ActorNameTakenError,
    NoFeasibleClusterError,
    NotAllowedError,
    QueueFullError,
    ResultLostError,
    ServiceUnavailableError,
    StoreFullError,
    TaskCancelledError,
    TaskSubmissionError,
    TaskTimeoutError,
    UnknownItemError,
    WorkerCrashedError,
)
from ray_multicluster_scheduler.common.exception import ClusterLostError as RaySystemError
from ray_multicluster_scheduler.common.task_errors import RayError, RayTaskError


class NeverRaised(RayError):
    """Stands for errors of Ray that cannot happen here."""


GetTimeoutError = TaskTimeoutError
RayActorError = ActorUnavailableError = ActorDiedError
NodeDiedError = LocalRayletDiedError = OutOfMemoryError = WorkerCrashedError
ObjectLostError = ObjectFetchTimedOutError = ObjectFreedError = OwnerDiedError = ResultLostError
ObjectReconstructionFailedError = ReferenceCountingAssertionError = PlasmaObjectNotAvailable = ResultLostError
RuntimeEnvSetupError = TaskSubmissionError
TaskUnschedulableError = ActorUnschedulableError = NoFeasibleClusterError
ObjectStoreFullError = OutOfDiskError = StoreFullError
PendingCallsLimitExceeded = QueueFullError
RpcError = ServiceUnavailableError
AuthenticationError = NotAllowedError
ActorAlreadyExistsError = ActorNameTakenError
ActorHandleNotFoundError = UnknownItemError
TaskPlacementGroupRemoved = ActorPlacementGroupRemoved = NeverRaised
ObjectRefStreamEndOfStreamError = StreamingGeneratorReplayInconsistentError = NeverRaised
AsyncioActorExit = CrossLanguageError = UserCodeException = NeverRaised
OufOfBandObjectRefSerializationException = UnserializableException = NeverRaised
RayChannelError = RayChannelTimeoutError = RayCgraphCapacityExceeded = RayDirectTransportError = NeverRaised

__all__ = [
    "ActorAlreadyExistsError",
    "ActorDiedError",
    "ActorHandleNotFoundError",
    "ActorPlacementGroupRemoved",
    "ActorUnavailableError",
    "ActorUnschedulableError",
    "AsyncioActorExit",
    "AuthenticationError",
    "CrossLanguageError",
    "GetTimeoutError",
    "LocalRayletDiedError",
    "NodeDiedError",
    "ObjectFetchTimedOutError",
    "ObjectFreedError",
    "ObjectLostError",
    "ObjectReconstructionFailedError",
    "ObjectRefStreamEndOfStreamError",
    "ObjectStoreFullError",
    "OufOfBandObjectRefSerializationException",
    "OutOfDiskError",
    "OutOfMemoryError",
    "OwnerDiedError",
    "PendingCallsLimitExceeded",
    "PlasmaObjectNotAvailable",
    "RayActorError",
    "RayCgraphCapacityExceeded",
    "RayChannelError",
    "RayChannelTimeoutError",
    "RayDirectTransportError",
    "RayError",
    "RaySystemError",
    "RayTaskError",
    "ReferenceCountingAssertionError",
    "RpcError",
    "RuntimeEnvSetupError",
    "StreamingGeneratorReplayInconsistentError",
    "TaskCancelledError",
    "TaskPlacementGroupRemoved",
    "TaskUnschedulableError",
    "UnserializableException",
    "UserCodeException",
    "WorkerCrashedError",
]
