"""What an agent says of itself when it joins."""

from __future__ import annotations

import os
import platform
from typing import Any

import ray


def who_we_are(carrier: str) -> dict[str, Any]:
    """Of this process and its cluster; ``carrier``: how it was brought here."""
    return {
        "carrier": carrier,
        "ray_version": ray.__version__,
        "python_version": platform.python_version(),
        "session_id": session_name(),
        "os": platform.system().lower(),
        "arch": platform.machine(),
        "job_id": ray.get_runtime_context().get_job_id(),
        "pid": os.getpid(),
    }


def session_name() -> str:
    """Of the cluster that this process belongs to: another one after each start of its head."""
    context = ray.get_runtime_context()
    if hasattr(context, "get_session_name"):
        return str(context.get_session_name())
    return str(ray._private.worker.global_worker.node.session_name)  # as older versions of Ray have it
