"""Who an agent is, and which life of its cluster it belongs to."""

from __future__ import annotations

import os
import platform
from typing import Any

import ray


def who() -> dict[str, Any]:
    """What an agent tells of itself when it joins."""
    return {
        "ray_version": ray.__version__,
        "python_version": platform.python_version(),
        "session_id": session_name(),
        "os": platform.system().lower(),
        "arch": platform.machine(),
        "job_id": ray.get_runtime_context().get_job_id(),
        "pid": os.getpid(),
    }


def session_name() -> str:
    """Ray's session, by the name that the dashboard tells, too. Newer Rays have a public way to it, older ones only the
    node that the process joined."""
    ask = getattr(ray.get_runtime_context(), "get_session_name", None)
    if ask is not None:
        return str(ask())
    from ray._private.worker import global_worker  # noqa: PLC0415 - only where there is no public way

    return str(global_worker.node.session_name)
