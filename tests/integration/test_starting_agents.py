"""Four tasks on two real clusters, of which one needs long to start its agent: nobody waits for that one."""

from __future__ import annotations

from ray_multicluster_scheduler import UnifiedScheduler
from ray_multicluster_scheduler.local_fleet import LocalFleet


def test_tasks_that_wait_for_an_agent_run_where_one_is_up(fleet: LocalFleet) -> None:
    def double(number: int) -> int:
        return 2 * number

    with UnifiedScheduler(fleet.config_path) as program:
        assert program.submit_task(double, (1,), preferred_cluster="linux", fallback="wait") == 2
        program.list_clusters(refresh=True)  # so that both take work; then the start of one agent takes long
        fleet.freeze("mac")
        try:
            handles = [program.submit_task_async(double, (number,)) for number in range(4)]
            assert [handle.result(timeout=120) for handle in handles] == [0, 2, 4, 6]
        finally:
            fleet.restore_network("mac")
        explanations = [program.explain(handle.id) for handle in handles]
        assert {explanation["cluster"] for explanation in explanations} == {"linux"}
        codes = {step["code"] for explanation in explanations for step in explanation["history"]}
        assert "TAKEN_BACK" in codes
