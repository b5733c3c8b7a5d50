"""LinkProblems made from the log of an agent that did not join."""

from __future__ import annotations

import pickle

import pytest

from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m
from ray_multicluster_scheduler.scheduler.connection.links.link_problem import (
    LinkProblem,
    agent_end_reason,
    from_agent_log,
)

RAYS_OWN = "2026-01-01 10:00:00,000 INFO job_manager.py:560 -- Runtime env is setting up.\n"


@pytest.mark.parametrize(
    ("log", "code", "permanent", "says", "next_step"),
    [
        (
            f"{RAYS_OWN}{m.DIAL_FAILED} 10.0.0.1:7000 (TimeoutError: )\n",
            "AGENT_CANNOT_DIAL",
            True,
            "cannot dial back to 10.0.0.1:7000: 10.0.0.1:7000 (TimeoutError: )",
            "agent_advertise",
        ),
        (
            f"{m.NO_RAY} /usr/bin/python3 cannot import ray: No module named 'ray'\n",
            "AGENT_NO_RAY",
            True,
            "/usr/bin/python3 cannot import ray: No module named 'ray'",
            "python of cluster 'lab'",
        ),
        ("/bin/sh: 1: python3.11: not found\n", "AGENT_NO_RAY", True, "python3.11: not found", "python of cluster"),
        (
            "/usr/bin/python3: Error while finding module specification (ModuleNotFoundError: No module named 'x')\n",
            "AGENT_NO_RAY",
            True,
            "No module named 'x'",
            "python of cluster",
        ),
        (
            f"{m.OLD_PYTHON} /usr/bin/python3 is Python 3.9.2\n",
            "AGENT_OLD_PYTHON",
            True,
            "/usr/bin/python3 is Python 3.9.2",
            "3.11",
        ),
        (f"{m.REFUSED} the proof is wrong\n", "AGENT_FAILED", False, "the proof is wrong", "job log"),
        ("one\ntwo\nthree\nfour\nfive\nsix\n", "AGENT_FAILED", False, "(FAILED): two | three | four", "job log"),
        ("", "AGENT_FAILED", False, "it left no log", "job log"),
        (f"{RAYS_OWN}{m.DIAL_FAILED}", "AGENT_CANNOT_DIAL", True, "10.0.0.1:7000", "agent_listen"),
        (f"{m.NO_RAY}\n", "AGENT_NO_RAY", True, "cannot run our agent", "python"),
    ],
)
def test_the_log_determines_the_next_step(log: str, code: str, permanent: bool, says: str, next_step: str) -> None:
    problem = from_agent_log("lab", "python3.11", "10.0.0.1:7000", "FAILED", log)
    assert (problem.code, problem.permanent, problem.cluster) == (code, permanent, "lab")
    assert "'lab'" in problem.message
    assert says in problem.message
    assert next_step in str(problem.next_step)


def test_a_problem_can_be_sent_to_another_process() -> None:
    problem = LinkProblem("m", code="C", permanent=True, task_id="t", cluster="a", next_step="n")
    copy = pickle.loads(pickle.dumps(problem))
    assert (str(copy), copy.code, copy.permanent, copy.task_id, copy.cluster) == (str(problem), "C", True, "t", "a")


@pytest.mark.parametrize(
    ("message", "output"),
    [
        (
            "failed with exit code 4:\nTraceback:\n  CancelledError\nRMCS-AGENT-CANNOT-DIAL h:1: the lease is over",
            "it ended itself because its lease expired without an answer: h:1: the lease is over",
        ),
        ("failed:\nRMCS-AGENT-REFUSED nobody waits for it", "it was rejected: nobody waits for it"),
        ("STOPPED", "STOPPED"),
        ("failed, logs:\n" + "\n".join("abcdefgh"), "failed, logs: | d | e | f | g | h"),
    ],
)
def test_the_end_of_an_agent_is_one_sentence(message: str, output: str) -> None:
    assert agent_end_reason(message) == output
