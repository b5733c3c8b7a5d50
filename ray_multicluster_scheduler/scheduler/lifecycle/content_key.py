"""The content key of an item: equal items have equal keys and may share one run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from ray_multicluster_scheduler.common.model import TaskDescription

_COUNTS = (
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
)
"""What makes two items differ. Names, priorities, retries and time limits do not: the first one's hold for both."""


def content_key(task: TaskDescription, sources: Sequence[str] = ()) -> str:
    """Hash of everything that makes two items differ. ``sources`` name the values that replace handles among its
    arguments, in order."""
    whole = task.to_dict()
    content = [[name, whole[name]] for name in _COUNTS]
    text = json.dumps([*content, list(sources)], sort_keys=True, default=repr)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
