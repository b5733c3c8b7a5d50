"""What the parts say to each other: frozen, validated, each with to_dict / from_dict."""

from ray_multicluster_scheduler.common.model.actor_description import ActorDescription
from ray_multicluster_scheduler.common.model.cluster_metadata import ClusterMetadata
from ray_multicluster_scheduler.common.model.decision import CandidateReport, Rejection, SchedulingDecision
from ray_multicluster_scheduler.common.model.gang_description import GangDescription, MemberDescription
from ray_multicluster_scheduler.common.model.job_description import JobDescription
from ray_multicluster_scheduler.common.model.resources import Resources, mentions_cpu, parse_resources
from ray_multicluster_scheduler.common.model.snapshot import NodeSnapshot, ResourceSnapshot
from ray_multicluster_scheduler.common.model.states import FailureClass, TaskState
from ray_multicluster_scheduler.common.model.task_description import TaskDescription

__all__ = [
    "ActorDescription",
    "CandidateReport",
    "ClusterMetadata",
    "FailureClass",
    "GangDescription",
    "JobDescription",
    "MemberDescription",
    "NodeSnapshot",
    "Rejection",
    "ResourceSnapshot",
    "Resources",
    "SchedulingDecision",
    "TaskDescription",
    "TaskState",
    "mentions_cpu",
    "parse_resources",
]
