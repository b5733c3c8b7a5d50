"""ConnectorConfig, and the events and commands between a connector and its control plane; both ends import this."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

TOKEN_VARIABLE = "RAY_AUTH_TOKEN"  # nosec B105 # the name of a variable
BEAT_S = 1.0

# Events of a connector: {"event": one of these, …}
PHASE = "phase"  # {phase, makes}: the next step; makes: it may create the gateway
READY = "ready"  # {session}: the gateway runs, and a connection to it is open
BEAT = "beat"  # {}: the connector's loop runs
GONE = "gone"  # {session, why, dead}: the cluster answers, and has no such gateway; dead: its process has ended
FAILED = "failed"  # {code, sentence}: then the connector ends
ANSWER = "answer"  # {id, answer, problem}: to a command; the problem is a sentence, or null

# Commands to a connector, after the first line: {"order": one of these, "id": number}
KILL = "kill"  # {}: kill the gateway
HAS_PACKAGE = "has package"  # {uri}: is it in the cluster's store? true or false
PUT_PACKAGE = "put package"  # {uri, path}: store this file there

# Codes of FAILED, which are those of the LinkProblem
UNREACHABLE, NOT_RAY_CLIENT, TOKEN_REFUSED = "HEAD_UNREACHABLE", "NOT_A_RAY_CLIENT", "HEAD_WRONG_TOKEN"
MISMATCH, NO_RAY, BROKEN = "RAY_MISMATCH", "CONNECTOR_NO_RAY", "CONNECTOR_FAILED"


@dataclass(frozen=True, slots=True)
class ConnectorConfig:
    """Connect the agent ``agent`` of ``cluster``, whose Ray Client server is at ``head``, with our port ``listener``.

    With ``join``, the agent's configuration, the connector creates the gateway's actor; without it the actor must
    exist. ``package`` is the folder of our package, which is shipped to the cluster. A call to the actor times out
    after ``patience_s``.
    """

    cluster: str
    agent: str
    head: str
    listener: tuple[str, int]
    patience_s: float
    join: dict[str, Any] | None = None
    package: str = ""
    excludes: tuple[str, ...] = ()
    inside: str = ""
    """The environment variable with the name of the cluster, for code that runs there."""

    def line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes | str) -> ConnectorConfig:
        data = json.loads(line)
        host, port = data["listener"]
        return cls(**{**data, "listener": (str(host), int(port)), "excludes": tuple(data["excludes"])})
