"""What a connector is told, and the words that it answers with; both ends share them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

TOKEN_VARIABLE = "RAY_AUTH_TOKEN"  # nosec B105 # the name of a variable
BEAT_S = 1.0

# What it says: {"event": one of these, …}
PHASE = "phase"  # {phase, makes}: what it is about to do; makes: from now on there may be a gateway
READY = "ready"  # {session}: the gateway is there, and a connection to it is open
BEAT = "beat"  # {}: it lives, and its loop turns
GONE = "gone"  # {session, why, dead}: the cluster answers, and has no such gateway; dead: its process has ended
FAILED = "failed"  # {code, sentence}: then it ends
ANSWER = "answer"  # {id, answer, problem}: to an order; a problem is a sentence, or null

# What it is told after the first line: {"order": one of these, "id": number}
KILL = "kill"  # {}: end the gateway
HAS_PACKAGE = "has package"  # {uri}: is it in the cluster's store? true or false
PUT_PACKAGE = "put package"  # {uri, path}: store this file there

# Codes of FAILED, which are those of the LinkProblem
UNREACHABLE, NOT_RAY_CLIENT, TOKEN_REFUSED = "HEAD_UNREACHABLE", "NOT_A_RAY_CLIENT", "HEAD_WRONG_TOKEN"
MISMATCH, NO_RAY, BROKEN = "RAY_MISMATCH", "CONNECTOR_NO_RAY", "CONNECTOR_FAILED"


@dataclass(frozen=True, slots=True)
class Order:
    """Reach the agent ``agent`` of ``cluster`` at ``head``, and connect it with our port ``listener``.

    With ``join`` its actor is made: that is what the agent is told. Without, it has to be there. ``package`` is the
    folder of our package, which is shipped there. A call to it that is not answered for ``patience_s`` is given up.
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
    """The variable by which code over there knows which cluster it runs in."""

    def line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes | str) -> Order:
        data = json.loads(line)
        host, port = data["listener"]
        return cls(**{**data, "listener": (str(host), int(port)), "excludes": tuple(data["excludes"])})
