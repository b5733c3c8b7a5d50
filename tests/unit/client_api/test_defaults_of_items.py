"""What the settings say, items get, unless their caller says otherwise."""

from __future__ import annotations

from ray_multicluster_scheduler.app.client_api.submission.submission import Submission
from ray_multicluster_scheduler.common.clock import SystemClock
from ray_multicluster_scheduler.control_plane.config import Settings
from ray_multicluster_scheduler.scheduler.scheduler_core.payload_cache import PayloadCache


def test_retries_crash_retries_and_lost_retries() -> None:
    settings = Settings(retries=4, crash_retries=5, lost_retries=6)
    submission = Submission(settings, PayloadCache(), SystemClock(), "cp", ["/home/alice"])
    for item in (submission.task(len, ("x",))[0], submission.job("true")):
        assert (item.retries, item.crash_retries, item.lost_retries) == (4, 5, 6)
    own, _ = submission.task(len, ("x",), retries=1, crash_retries=0, lost_retries=2)
    assert (own.retries, own.crash_retries, own.lost_retries) == (1, 0, 2)
