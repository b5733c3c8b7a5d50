"""A key that is accepted changes behaviour: each one names the test that shows it."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from ray_multicluster_scheduler.control_plane.config import ClusterConfig, Settings
from ray_multicluster_scheduler.control_plane.config.pool_config import PoolConfig
from ray_multicluster_scheduler.control_plane.config.settings import Preemption

TESTS = Path(__file__).resolve().parents[2]

# One line per key:
# ruff: noqa: E501
SETTINGS = {
    "resource_threshold": "unit/lifecycle/test_scheduling_pass.py::test_thirty_tasks_of_two_cpus_on_sixteen_and_eight_cores_in_one_pass",
    "threshold_on": "unit/policy/test_filters.py::test_what_the_threshold_counts",
    "submission_interval_s": "unit/lifecycle/test_scheduling_pass.py::test_the_submission_interval_wakes_the_queue_by_itself",
    "submission_interval_kinds": "unit/lifecycle/test_scheduling_pass.py::test_the_interval_holds_for_the_kinds_that_are_named",
    "execution_mode": "unit/lifecycle/test_scheduling_pass.py::test_serial_mode_runs_one_item_per_cluster_in_order",
    "max_queue": "unit/lifecycle/test_submit_to_result.py::test_a_full_queue_refuses_loudly",
    "dedup": "unit/client_api/test_equal_items.py::test_the_setting_joins_equal_items_and_an_item_may_say_otherwise",
    "retries": "unit/client_api/test_defaults_of_items.py::test_retries_crash_retries_and_lost_retries",
    "crash_retries": "unit/client_api/test_defaults_of_items.py::test_retries_crash_retries_and_lost_retries",
    "lost_retries": "unit/client_api/test_defaults_of_items.py::test_retries_crash_retries_and_lost_retries",
    "retry_backoff": "unit/lifecycle/test_retry.py::test_the_timer_is_set_to_the_back_off",
    "breaker_failures": "unit/lifecycle/test_fleet_events.py::test_the_breaker_opens_and_a_snapshot_is_the_probe",
    "breaker_recovery_s": "unit/lifecycle/test_unplaceable_items.py::test_a_link_that_failed_is_tried_again_after_a_while",
    "heartbeat_s": "unit/connection/test_agent_link_loss.py::test_missed_heartbeats_break_the_connection",
    "lease_s": "integration/test_link.py::test_no_orphans_after_kill_9_of_the_program",
    "lost_after_s": "unit/connection/test_agent_link_loss.py::test_a_silent_agent_is_dead_when_its_lease_has_expired",
    "node_grace_s": "unit/lifecycle/test_node_grace.py::test_the_next_attempt_waits_node_grace_s_where_there_were_several_nodes",
    "start_grace_s": "unit/lifecycle/test_timeouts.py::test_attempt_that_does_not_start_in_time_is_recalled_and_placed_again",
    "snapshot_interval_s": "unit/lifecycle/test_fleet_events.py::test_how_often_a_cluster_is_asked_is_set_by_snapshot_interval_s",
    "health_check_interval_s": "unit/lifecycle/test_dashboard_checks.py::test_a_linked_dashboard_is_checked_every_health_check_interval_s_while_something_runs",
    "prefetch_ms": "unit/lifecycle/test_prefetch.py::test_as_much_is_sent_as_keeps_the_places_busy_for_prefetch_ms",
    "reserve_after_s": "unit/lifecycle/test_wide_item_reservations.py::test_reserve_after_zero_keeps_at_once_and_no_timer_stays",
    "ageing_s": "unit/lifecycle/test_fair_share.py::test_ageing_lets_an_old_item_pass_a_more_urgent_one",
    "order": "unit/lifecycle/test_fair_share.py::test_with_order_fifo_owners_do_not_count",
    "owners": "unit/lifecycle/test_fair_share.py::test_weights_divide_what_there_is",
    "combine": "unit/policy/test_policy_engine.py::test_weighted_adds_up_and_chain_compares_one_after_the_other",
    "weights": "unit/policy/test_policy_engine.py::test_weighted_adds_up_and_chain_compares_one_after_the_other",
    "near_equal_scores": "unit/policy/test_near_equal_scores.py::test_the_setting_near_equal_scores_sets_how_near",
    "policies": "unit/policy/test_user_policies.py::test_an_object_that_is_a_policy_stands_for_itself",
    "agent_listen": "support/mac_cluster.py::line_to_mac",
    "agent_advertise": "support/mac_cluster.py::line_to_mac",
    "connector_python": "unit/connection/test_connector_environment.py::test_the_clusters_own_then_that_of_the_settings_then_ours_if_it_has_ray",
    "agent_idle_s": "integration/test_link.py::test_an_unneeded_agent_ends",
    "agent_linger_s": "integration/test_lingering_agents.py::test_an_agent_that_no_program_needs_ends",
    "program_lease_s": "integration/test_service_actors.py::test_an_actor_ends_with_its_killed_program",
    "keep_history_s": "unit/service/test_retention.py::test_items_that_ended_longer_ago_than_keep_history_s_are_forgotten",
    "keep_history_items": "unit/service/test_retention.py::test_no_more_than_keep_history_items_are_kept_the_newest",
    "keep_payloads_s": "unit/service/test_retention.py::test_values_are_forgotten_after_keep_payloads_s_and_their_items_are_not",
    "max_payload_bytes": "unit/service/test_retention.py::test_one_payload_is_not_larger_than_max_payload_bytes",
    "payload_quota_bytes": "unit/service/test_retention.py::test_all_payloads_together_are_not_more_than_payload_quota_bytes",
    "auth": "unit/service/test_listening.py::test_the_setting_auth_says_whether_tokens_are_asked_for",
    "service_tls": "unit/service/test_listening.py::test_the_setting_service_tls_serves_https",
    "cors_origins": "unit/service/test_browsers.py::test_pages_of_the_cors_origins_are_let_in_and_no_others",
    "serving": "unit/service/test_serving_routes.py::test_instances_are_called_within_the_networks_of_allow",
    "tracing": "unit/service/test_traces.py::test_the_setting_tracing_sends_a_trace_of_a_task_that_succeeded",
    "preemption": "unit/service/test_preemption_http.py::test_the_settings_reach_the_rules",
    "max_connections": "unit/service/test_up.py::test_there_are_no_more_connections_than_max_connections",
}
CLUSTERS = {
    "name": "unit/config/test_cluster_config.py::test_metadata_carries_every_key_that_is_no_secret",
    "head_address": "unit/lifecycle/test_unplaceable_items.py::test_without_a_dashboard_tasks_go_by_ray_client",
    "dashboard": "unit/lifecycle/test_unplaceable_items.py::test_without_a_dashboard_tasks_go_by_ray_client",
    "prefer": "unit/policy/test_policy_engine.py::test_the_load_score_vectors",
    "weight": "unit/policy/test_policy_engine.py::test_the_load_score_vectors",
    "tags": "unit/policy/test_policy_engine.py::test_preferred_before_tags_before_load",
    "home_dir": "integration/test_tasks.py::test_a_path_under_the_submitters_home_follows_the_task",
    "python": "unit/connection/test_link_problem.py::test_the_log_determines_the_next_step",
    "runtime_env": "integration/test_tasks.py::test_each_cluster_brings_its_own_environment",
    "auth_token": "unit/connection/test_job_client_pool.py::test_token_of_the_configuration_is_used_and_close_leaves_nothing",
    "auth_token_path": "integration/test_local_fleet.py::test_two_clusters_match_their_descriptions",
    "tls": "unit/connection/test_dashboard_problems.py::test_tls",
    "max_running_jobs": "unit/policy/test_filters.py::test_max_running_jobs",
    "max_in_flight": "unit/policy/test_filters.py::test_max_in_flight",
    "carrier": "unit/connection/test_carrier.py::test_which_way_and_why",
    "agent_port": "integration/test_dial_in.py::test_a_taken_or_unreachable_port_is_reported_within_seconds",
    "agent_address": "integration/test_dial_in.py::test_a_taken_or_unreachable_port_is_reported_within_seconds",
    "connector_python": "unit/connection/test_connector_environment.py::test_the_clusters_own_then_that_of_the_settings_then_ours_if_it_has_ray",
    "autoscaling": "unit/lifecycle/test_new_nodes.py::test_a_cluster_that_does_not_grow_by_itself_is_sent_nothing",
    "max_node": "unit/policy/test_filters.py::test_a_node_that_may_still_appear",
}

POOLS = {
    "name": "unit/service/test_pools_http.py::test_an_item_gets_the_pool_that_it_names_or_matches",
    "labels": "unit/service/test_pools_http.py::test_an_item_gets_the_pool_that_it_names_or_matches",
    "quota": "unit/service/test_pools_http.py::test_quota_limits_what_runs_and_explain_names_it",
    "cluster_quota": "unit/service/test_pools_http.py::test_a_quota_of_a_cluster",
    "cohort": "unit/service/test_pools_http.py::test_a_pool_borrows_within_its_limits",
    "borrow_limit": "unit/service/test_pools_http.py::test_a_pool_borrows_within_its_limits",
    "lend_limit": "unit/service/test_pools_http.py::test_a_pool_borrows_within_its_limits",
    "protected": "unit/service/test_pools_http.py::test_a_protected_pool_does_not_borrow",
    "reclaim": "unit/config/test_pool_config.py::test_problems_of_pools",
    "priority": "unit/service/test_pools_http.py::test_the_priority_of_the_pool_replaces_0",
    "preemptible": "unit/config/test_pool_config.py::test_all_keys",
    "owners": "unit/service/test_pools_http.py::test_a_pool_is_for_its_owners",
}

PREEMPTION = {
    "preset": "unit/config/test_load_config.py::test_presets_of_preemption",
    **dict.fromkeys(
        (
            "label",
            "same_pool",
            "other_pool",
            "enable_cross_pool",
            "label_rules",
            "min_runtime_s",
            "cool_down_s",
            "grace_s",
        ),
        "unit/service/test_preemption_http.py::test_the_settings_reach_the_rules",
    ),
}


def test_no_key_is_without_its_test() -> None:
    assert set(SETTINGS) == set(Settings.model_fields)
    assert set(CLUSTERS) == set(ClusterConfig.model_fields)
    assert set(POOLS) == set(PoolConfig.model_fields)
    assert set(PREEMPTION) == set(Preemption.model_fields)


@pytest.mark.parametrize(("key", "test"), [*SETTINGS.items(), *CLUSTERS.items(), *POOLS.items(), *PREEMPTION.items()])
def test_the_named_test_is_there_and_speaks_of_the_key(key: str, test: str) -> None:
    file, name = test.split("::")
    source = _functions(TESTS / file).get(name)
    assert source is not None, f"{test} does not exist"
    assert re.search(rf"\b{key}\b", source), f"{test} says nothing of {key}"


@cache
def _functions(path: Path) -> dict[str, str]:
    """Every function of a test file with its decorators, as text."""
    lines = path.read_text().splitlines()
    found = {}
    for node in ast.walk(ast.parse("\n".join(lines))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            found[node.name] = "\n".join(lines[first - 1 : node.end_lineno])
    return found
