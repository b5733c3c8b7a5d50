"""LingeringAgents: the agents that programs of this user left idle on this machine, for the next program to take over.

Each is recorded in a file that only the user may read, under ``$RMCS_HOME/agents``. Removing the file claims the agent,
which succeeds for one program only. No file name is used twice.
"""

from __future__ import annotations

import json
import secrets
import socket
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.control_plane.config import ClusterConfig
from ray_multicluster_scheduler.control_plane.config.home import rmcs_home
from ray_multicluster_scheduler.control_plane.store.private_file import make_folder, read_private, write_private
from ray_multicluster_scheduler.scheduler.connection.agents.agent_address import AgentAddress
from ray_multicluster_scheduler.scheduler.connection.agents.agent_records import AgentRecord
from ray_multicluster_scheduler.scheduler.connection.packages.runtime_env_upload import own_package_fingerprint

_MIN_REMAINING_S = 1.0
"""An agent that ends sooner is not claimed any more."""

Terms = dict[str, Any]
"""What must be equal in two programs so that the second can use the agent of the first; plain JSON."""


class ClaimedAgent(NamedTuple):
    """``record.token`` is its next one-time token; ``record.identity`` is our key that it trusts. Its first start took
    ``start_s``."""

    record: AgentRecord
    left_s_ago: float
    start_s: float


class LingeringAgents:
    """``linger_s``: the time after which an agent ends that no program has taken over. The methods block."""

    def __init__(self, linger_s: float, folder: Path | None = None) -> None:
        self.linger_s = linger_s
        self._folder = folder or rmcs_home() / "agents"

    def terms(self, config: ClusterConfig, address: AgentAddress) -> Terms:
        """The terms of an agent that is started now with these."""
        return {
            "cluster": config.name,
            "dashboard": config.dashboard,
            "python": config.python,
            "address": asdict(address),
            "machine": socket.gethostname(),
            "package": own_package_fingerprint(),
        }

    def leave(self, record: AgentRecord, terms: Terms, start_s: float) -> None:
        """Record an agent that was told to linger. Raises OSError."""
        make_folder(self._folder)
        content = {"terms": terms, "left_at": time.time(), "linger_s": self.linger_s, "start_s": start_s}
        content["agent"] = record.to_dict()
        write_private(self._folder / f"{record.agent}.{secrets.token_hex(4)}.json", json.dumps(content))

    def names(self) -> set[str]:
        """The names of the recorded agents."""
        return {path.name.rsplit(".", 2)[0] for path in self._folder.glob("*.json")}

    def claim(self, terms: Terms) -> ClaimedAgent | None:
        """An agent with these terms that no other program has claimed; None if there is none. Removes the records of
        agents that have ended."""
        for path in self._folder.glob("*.json"):
            with suppress(OSError, ConfigurationError, ValueError, KeyError, TypeError):  # it was claimed; is not ours
                content = json.loads(read_private(path))
                left_s_ago = max(0.0, time.time() - content["left_at"])
                over = left_s_ago > content["linger_s"] - _MIN_REMAINING_S
                if over or content["terms"] == terms:
                    path.unlink()  # fails if another program was faster
                if not over and content["terms"] == terms:
                    return ClaimedAgent(AgentRecord.from_dict(content["agent"]), left_s_ago, content["start_s"])
        return None
