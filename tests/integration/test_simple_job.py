"""One simple Ray job, from submission to its log. Read this second."""

from __future__ import annotations

import pytest

from ray_multicluster_scheduler import get_job_info, get_job_logs, get_job_status, submit_job, wait_for_all_jobs

pytestmark = pytest.mark.usefixtures("scheduler")


def test_a_simple_job() -> None:
    job_id = submit_job(
        """python -c 'import os; print("hello from", os.environ["RMCS_CLUSTER"])'""",
        require_tags=["arm64"],
        metadata={"team": "weather"},
    )
    assert get_job_status(job_id) in {"QUEUED", "PENDING", "RUNNING"}, "it has a status from the first moment"

    assert wait_for_all_jobs([job_id], timeout=90) == {job_id: "SUCCEEDED"}

    info = get_job_info(job_id)
    assert info["cluster"] == "mac"
    assert info["metadata"] == {"team": "weather"}
    assert "hello from mac" in get_job_logs(job_id)
