"""What the pictures show is what a service sends: rows that are made by hand are held against its document."""

from __future__ import annotations

from typing import Any

import pytest

from ray_multicluster_scheduler.cli.layout.times import with_iso_times
from tests.unit.cli import golden_data, test_golden_clusters, test_golden_items, test_top
from tests.unit.cli.openapi import schema_violations
from tests.unit.service.http_service import HttpService

STATUS: dict[str, Any] = golden_data.STATUS


@pytest.mark.parametrize(
    ("path", "rows", "inside"),
    [
        ("/api/v1/clusters", STATUS["clusters"], "clusters"),
        ("/api/v1/clusters", test_golden_clusters.CLUSTERS, "clusters"),
        ("/api/v1/clusters", test_top.SEEN["clusters"], "clusters"),
        ("/api/v1/clusters/{name}", test_golden_clusters.CENTOS, None),
        ("/api/v1/clusters/{name}", test_golden_clusters.ATTIC, None),
        ("/api/v1/queue", STATUS["queue"], None),
        ("/api/v1/queue", test_top.SEEN["queue"], "waiting"),
        ("/api/v1/items", golden_data.ITEMS, "items"),
        ("/api/v1/items", test_top.SEEN["running"], "items"),
        ("/api/v1/items/{item_id}", test_golden_items.FAILED, None),
        ("/api/v1/items/{item_id}/explain", golden_data.STORY, None),
        ("/api/v1/items/{item_id}/preemption", test_golden_items.PREEMPTION, None),
        ("/api/v1/jobs", test_golden_items.JOBS, "jobs"),
        ("/api/v1/actors", test_golden_items.ACTORS, "actors"),
        ("/api/v1/nodes", test_top.SEEN["nodes"], "nodes"),
        ("/api/v1/owners", test_golden_clusters.OWNERS, "owners"),
        ("/api/v1/pools", test_golden_clusters.POOLS, "pools"),
        ("/api/v1/tokens", test_golden_clusters.TOKENS, "tokens"),
        ("/api/v1/serving/deployments", test_golden_clusters.DEPLOYMENTS, "deployments"),
    ],
)
def test_it_is_what_a_service_sends(service: HttpService, path: str, rows: Any, inside: str | None) -> None:
    assert schema_violations(service, path, with_iso_times(rows), *filter(None, [inside])) == []


@pytest.mark.parametrize("answer", test_golden_clusters.CHECKED, ids=lambda one: str(one["cluster"]["name"]))
def test_so_is_a_check(service: HttpService, answer: dict[str, Any]) -> None:
    assert schema_violations(service, "/api/v1/clusters/{name}/check", with_iso_times(answer), method="post") == []


def test_golden_cluster_has_all_fields_of_the_service(service: HttpService) -> None:
    """Most of it may be missing, as older services do not say it; but a picture is of this one."""
    (mac,) = service.get("/api/v1/clusters")["clusters"]
    details = service.get("/api/v1/clusters/mac?refresh=false")
    assert [set(mac) ^ set(row) for row in (*STATUS["clusters"], *test_golden_clusters.CLUSTERS)] == [set()] * 8
    assert [set(details) ^ set(row) for row in (test_golden_clusters.CENTOS, test_golden_clusters.ATTIC)] == [set()] * 2
