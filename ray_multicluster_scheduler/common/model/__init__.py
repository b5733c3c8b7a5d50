"""The data that all parts exchange: frozen, validated dataclasses, each with to_dict and from_dict.

Items (TaskDescription and its parts for actors, jobs and gangs), clusters (ClusterMetadata, ResourceSnapshot),
decisions, states. item_fields.py is the vocabulary in which the fields of items are defined; start reading in
task_description.py. Standard library only, since it is shipped into clusters; everything may import it.
"""

from ray_multicluster_scheduler.common.model.actor_description import ActorDescription
from ray_multicluster_scheduler.common.model.cluster_metadata import ClusterMetadata
from ray_multicluster_scheduler.common.model.decision import CandidateReport, Rejection, SchedulingDecision
from ray_multicluster_scheduler.common.model.gang_description import GangDescription, MemberDescription
from ray_multicluster_scheduler.common.model.job_description import JobDescription
from ray_multicluster_scheduler.common.model.resources import Resources, mentions_cpu, parse_resources
from ray_multicluster_scheduler.common.model.snapshot import NodeSnapshot, ResourceSnapshot
from ray_multicluster_scheduler.common.model.states import FailureClass, TaskState, allows_retry
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
    "allows_retry",
    "mentions_cpu",
    "parse_resources",
]
