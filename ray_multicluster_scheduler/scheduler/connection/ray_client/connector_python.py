"""Which interpreter runs a cluster's connector, and with what environment."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping

from ray_multicluster_scheduler.control_plane.config import ClusterConfig, Settings
from ray_multicluster_scheduler.scheduler.connection.connector import protocol as o
from ray_multicluster_scheduler.scheduler.connection.links.link_problem import GIVE_CONNECTOR, LinkProblem

_SCRUBBED = ("RMCS_", "RAY_", "PYTHON", "COVERAGE_", "COV_CORE_", "PYTEST_")
_KEPT = ("RAY_USE_TLS", "RAY_TLS_")
_CONNECT_S, _RECONNECT_S = "3", "3"
"""Ray's own patience: 30 s. It is watched from outside, and a new process is there sooner than that."""


def connector_python(config: ClusterConfig, settings: Settings) -> str:
    """``connector_python`` of the cluster, or of the settings, or our own if it has ray. Raises LinkProblem."""
    named = config.connector_python or settings.connector_python
    if named is not None:
        found = shutil.which(os.path.expanduser(named))
        if found is None:
            raise LinkProblem(
                f"connector_python of cluster {config.name!r} is {named}, which cannot be run.",
                code="CONNECTOR_NO_RAY",
                permanent=True,
                cluster=config.name,
                next_step="give the path of a Python that has the cluster's version of Ray",
            )
        return found
    if importlib.util.find_spec("ray") is None:
        raise LinkProblem(
            f"cluster {config.name!r} is reached by Ray Client, and {sys.executable} has no ray.",
            code="CONNECTOR_NO_RAY",
            permanent=True,
            cluster=config.name,
            next_step=GIVE_CONNECTOR,
        )
    return sys.executable


def connector_environment(ours: Mapping[str, str], token: str | None) -> dict[str, str]:
    """Nothing of our own Python, settings or another Ray gets in; of Ray's, only what TLS needs."""
    env = {key: value for key, value in ours.items() if not key.startswith(_SCRUBBED) or key.startswith(_KEPT)}
    env.update(
        {
            "PYTHONSAFEPATH": "1",
            "PYTHONUNBUFFERED": "1",
            "GRPC_ENABLE_FORK_SUPPORT": "0",
            "RAY_ENABLE_AUTO_CONNECT": "0",
            "RAY_AUTH_MODE": "disabled" if token is None else "token",
            "RAY_CLIENT_INITIAL_CONNECTION_TIMEOUT_S": _CONNECT_S,
            "RAY_CLIENT_MAX_CONNECTION_TIMEOUT_S": _CONNECT_S,
            "RAY_CLIENT_RECONNECT_GRACE_PERIOD": _RECONNECT_S,
            "RAY_RUNTIME_ENV_IGNORE_GITIGNORE": "1",
        }
    )
    if token is not None:
        env[o.TOKEN_VARIABLE] = token
    return env
