"""troubleshooting.md explains exactly the codes that users can see."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

import ray_multicluster_scheduler
from ray_multicluster_scheduler.common import exception
from ray_multicluster_scheduler.common.exception import code_of
from ray_multicluster_scheduler.control_plane.config import ClusterConfig, RetryBackoff, Settings, Threshold, Tls
from ray_multicluster_scheduler.control_plane.config.loader import NothingConfiguredError
from ray_multicluster_scheduler.control_plane.config.pool_config import PoolConfig
from ray_multicluster_scheduler.control_plane.config.settings import (
    OwnerLimits,
    Preemption,
    ServiceTls,
    Serving,
    Tracing,
)
from ray_multicluster_scheduler.scheduler.connection.dashboard.dashboard_problem import ProblemCode
from ray_multicluster_scheduler.scheduler.connection.links.link_problem import CONNECTOR_PROBLEMS
from ray_multicluster_scheduler.scheduler.lifecycle import codes
from ray_multicluster_scheduler.scheduler.policy import reasons

PACKAGE = Path(ray_multicluster_scheduler.__file__).parent
TEXT = (PACKAGE / "cli" / "troubleshooting.md").read_text(encoding="utf-8")
EXPLAINED = re.findall(r"^### (\w+)$", TEXT, re.MULTILINE)
UNSEEN = {"BEGUN", "RECALLED"}
"""Internal codes."""


def constants(module: object) -> set[str]:
    return {value for name, value in vars(module).items() if name.isupper() and isinstance(value, str)}


def of_links() -> set[str]:
    """The codes of failed links, and of items whose link failed."""
    sources = [
        path for part in ("connection", "scheduler_core") for path in (PACKAGE / "scheduler" / part).rglob("*.py")
    ]
    given = re.compile(r'(?:\bcode=|\bcode(?:, \w+)? = (?="AGENT_)|FailureClass\.\w+, "\w*", |"\w+Error", )"([A-Z_]+)"')
    found = {code for path in sources for code in given.findall(path.read_text(encoding="utf-8"))}
    found |= set(get_args(ProblemCode)) | set(CONNECTOR_PROBLEMS)
    for name in ("connection/gateway/calls/failures.py", "scheduler_core/job_runner.py"):
        text = (PACKAGE / "scheduler" / name).read_text(encoding="utf-8")
        found |= set(re.findall(r'"((?:OUT|NODE|WORKER|OBJECT|PACKAGE|RUNTIME|JOB)_[A-Z_]+)"', text))
    found = {code for code in found if not code.endswith("_FAILURE")}  # codes of Ray
    return found - {"JOB_STOPPED", "RECALLED"}  # internal; users see CANCELLED_THERE and TAKEN_BACK


def of_errors() -> set[str]:
    kinds = [one for one in vars(exception).values() if isinstance(one, type)]
    return {code_of(one.__name__) for one in kinds if issubclass(one, exception.SchedulerError)} - {"SCHEDULER"}


ELSEWHERE = {code_of(NothingConfiguredError.__name__), "NOT_LET_IN", "SAME_CLUSTER"}
MET = constants(reasons) | constants(codes) | set(codes.FAILED.values()) | of_links() | of_errors() | ELSEWHERE
MET -= UNSEEN


@pytest.mark.parametrize("code", sorted(MET))
def test_a_code_is_explained(code: str) -> None:
    assert code in EXPLAINED


def test_explained_codes_exist_and_are_unique() -> None:
    assert sorted(EXPLAINED) == sorted(set(EXPLAINED))
    assert set(EXPLAINED) <= MET


def test_each_explanation_has_a_sentence() -> None:
    for section in re.split(r"^### ", TEXT, flags=re.MULTILINE)[1:]:
        code, _, rest = section.partition("\n")
        assert len(rest.split("\n## ")[0].split()) >= 2, code


def test_an_unreachable_cluster_is_explained_for_all_carriers() -> None:
    """A cluster may have no dashboard."""
    text = TEXT.partition("### CLUSTER_UNREACHABLE")[2].partition("###")[0]
    for term in ("`dashboard`", "`head_address`", "Ray Client", "(#head_unreachable)", "(#connector_failed)"):
        assert term in text


def test_a_wrong_configuration_is_explained_for_every_key() -> None:
    """Configuration errors link to this section."""
    text = TEXT.partition("### CONFIGURATION")[2].partition("###")[0]
    of_settings, inside, of_clusters, of_pools = (set(re.findall(r"`(\w+)`", part)) for part in text.split("\n\n")[2:6])
    assert of_settings == {"settings", *Settings.model_fields}
    assert of_clusters == {"clusters", *ClusterConfig.model_fields, *Tls.model_fields}
    assert of_pools == {"pools", *PoolConfig.model_fields}
    parts = (Threshold, RetryBackoff, OwnerLimits, Preemption, ServiceTls, Serving, Tracing)
    assert inside >= {key for model in parts for key in model.model_fields}
