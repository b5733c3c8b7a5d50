"""LinkProblem: the error for a link that could not be made; its builders read the log of an agent or a connector.

Raised by carriers. Each problem has a code, and a next step that names the configuration key to change.
"""

from __future__ import annotations

from functools import partial

from ray_multicluster_scheduler.common.exception import ClusterConnectionError
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m

_TAIL_LINES = 5
CLUSTER_RESTARTED = "the cluster was restarted and has no record of it"
"""The reason why an agent is dead if its cluster does not know it."""
PROCESSES_DEAD = "it and all its workers are dead (none of them holds its lock file on this machine any more)"
"""The reason if its lock file is free (see gateway/worker/process_lock.py)."""


class LinkProblem(ClusterConnectionError):
    """A link could not be made. ``permanent``: retrying does not help before the configuration is changed."""

    def __init__(
        self,
        message: str,
        *,
        code: str,
        permanent: bool,
        task_id: str | None = None,
        cluster: str | None = None,
        next_step: str | None = None,
    ) -> None:
        super().__init__(message, task_id=task_id, cluster=cluster, next_step=next_step)
        self.code = code
        self.permanent = permanent

    def __reduce__(self) -> tuple[object, ...]:
        fields = {"task_id": self.task_id, "cluster": self.cluster, "next_step": self.next_step}
        return (partial(LinkProblem, self.message, code=self.code, permanent=self.permanent, **fields), ())


def from_agent_log(cluster: str, python: str, dialed: str, status: str, log: str) -> LinkProblem:
    """Diagnose, by its log, an agent that ended before it joined. ``dialed`` is the address that it had to dial."""
    tail = " | ".join(line.strip() for line in log.strip().splitlines()[-_TAIL_LINES:])
    permanent = True
    if m.DIAL_FAILED in log:
        code, reason = "AGENT_CANNOT_DIAL", _text_after(m.DIAL_FAILED, log)
        sentence = f"the agent in cluster {cluster!r} started but cannot dial back to {dialed}: {reason}."
        next_step = (
            "set agent_listen and agent_advertise to an address of this machine that the cluster's head can reach, and "
            "open that port"
        )
    elif m.LISTEN_FAILED in log:
        code, where = "AGENT_CANNOT_LISTEN", _text_after(m.LISTEN_FAILED, log)
        permanent = not where.startswith(m.TAKEN)
        where = where.removeprefix(m.TAKEN).strip()
        sentence = f"the agent in cluster {cluster!r} started, but cannot listen at {where}."
        next_step = f"set another agent_port for cluster {cluster!r}, or none to use any free port"
    elif m.NO_RAY in log or ("not found" in log and python in log) or "No module named" in log:
        code, reason = "AGENT_NO_RAY", _text_after(m.NO_RAY, log) if m.NO_RAY in log else tail
        sentence = f"the interpreter {python!r} of cluster {cluster!r} cannot run our agent: {reason}."
        next_step = f"set the key python of cluster {cluster!r} to an interpreter there that can import ray"
    elif m.OLD_PYTHON in log:
        code = "AGENT_OLD_PYTHON"
        sentence = f"the interpreter of cluster {cluster!r} is too old: {_text_after(m.OLD_PYTHON, log)}."
        next_step = "tasks and actors need Python 3.11 or newer there, of the same minor version as here"
    else:
        code, permanent = "AGENT_FAILED", False
        sentence = f"the agent in cluster {cluster!r} ended before it joined ({status}): {tail or 'it left no log'}"
        next_step = "read the agent's job log in the cluster's dashboard"
    return LinkProblem(sentence, code=code, permanent=permanent, cluster=cluster, next_step=next_step)


GIVE_CONNECTOR = (
    "set connector_python to a Python on this machine that has the cluster's version of Ray, or install the extra: "
    "pip install 'ray_multicluster_scheduler[ray]'"
)
IS_NO_CONNECTOR = (
    "check that connector_python is the path of a Python on this machine that has the cluster's version of Ray, such "
    "as /opt/ray/bin/python; the connection is tried again"
)
"""The next step for a connector without any output: a Python connector reports its phase before anything else."""
CONNECTOR_PROBLEMS: dict[str, tuple[bool, str]] = {
    "HEAD_UNREACHABLE": (False, "check that the cluster is up, and that head_address is where its Ray Client listens"),
    "NOT_A_RAY_CLIENT": (True, "set head_address to the Ray Client port of the head (by default 10001)"),
    "HEAD_WRONG_TOKEN": (True, "set auth_token or auth_token_path to the token the cluster was started with"),
    "RAY_MISMATCH": (True, "set connector_python to a Python on this machine that has the cluster's version of Ray"),
    "CONNECTOR_NO_RAY": (True, GIVE_CONNECTOR),
    "CONNECTOR_FAILED": (False, "read the sentence; the connection is tried again"),
}


def from_connector(cluster: str, python: str, code: str, sentence: str, next_step: str = "") -> LinkProblem:
    """Build the error for a connector that failed to start a gateway; ``python`` is its interpreter."""
    permanent, usual = CONNECTOR_PROBLEMS[code]
    return LinkProblem(
        f"cluster {cluster!r} cannot be reached by Ray Client ({python}): {sentence}.",
        code=code,
        permanent=permanent,
        cluster=cluster,
        next_step=next_step or usual,
    )


def agent_end_reason(message: str) -> str:
    """Condense Ray's message about an ended agent job, which quotes the whole log, to one sentence."""
    if m.DIAL_FAILED in message:
        return f"it ended itself because its lease expired without an answer: {_text_after(m.DIAL_FAILED, message)}"
    if m.REFUSED in message:
        return f"it was rejected: {_text_after(m.REFUSED, message)}"
    lines = [line.strip() for line in message.strip().splitlines() if line.strip()]
    return " | ".join([*lines[:1], *lines[1:][-_TAIL_LINES:]])


def _text_after(word: str, log: str) -> str:
    first_line = log.split(word, 1)[1].strip().partition("\n")[0]
    return first_line.strip().rstrip(".") or "its log has no details"
