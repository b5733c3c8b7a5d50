"""Sizes of simulated clusters: short syntax, file, and errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model import ClusterMetadata
from ray_multicluster_scheduler.control_plane.config import FleetConfig, load_config
from ray_multicluster_scheduler.simulation import (
    Item,
    OthersLoad,
    PlannedFault,
    SimulatedCluster,
    SimulatedFleet,
    Workload,
    cluster,
    load_fleet,
    lower_bound,
)
from ray_multicluster_scheduler.simulation.size_syntax import parse_nodes, parse_time
from tests.unit.simulation.simulated_runs import exact, fleet, item


@pytest.fixture
def config() -> FleetConfig:
    names = [{"name": name, "dashboard": f"http://{name}.invalid:8265", "tags": [f"of-{name}"]} for name in ("a", "b")]
    return load_config(names, environ={})


class TestTexts:
    def test_nodes(self) -> None:
        assert parse_nodes("2x{CPU:16,GPU:1}+{memory:1GiB}@1.5") == (
            [{"CPU": 16.0, "GPU": 1.0}, {"CPU": 16.0, "GPU": 1.0}, {"memory": 1024.0**3}],
            1.5,
        )

    @pytest.mark.parametrize(
        ("text", "output"),
        [
            ("16", "'16' is not a group of nodes"),
            ("4x{CPU:16}+", "'' is not a group of nodes"),
            ("0x{CPU:1}", "it has no nodes"),
            ("4x{CPU:16}@fast", "'fast' is not a speed"),
            ("999999x{CPU:1}", "it has more than 100000 nodes"),
            ("1x{CPU:many}", "'many' is not a number"),
        ],
    )
    def test_invalid_nodes(self, text: str, output: str) -> None:
        with pytest.raises(ConfigurationError) as caught:
            parse_nodes(text)
        assert output in caught.value.message

    @pytest.mark.parametrize(
        ("text", "expected"), [(90, 90), ("90", 90), ("500ms", 0.5), ("1.5min", 90), ("2d", 172800)]
    )
    def test_times(self, text: object, expected: float) -> None:
        assert parse_time(text) == expected

    def test_a_cluster_in_one_line(self) -> None:
        one = cluster("mac", "2x{CPU:8}@1.5", tags=("arm64",), latency_s=0.0)
        assert (one.name, one.speed, one.total(), one.metadata.tags, one.latency_s) == ("mac", 1.5, 16, ("arm64",), 0)
        assert cluster("mac", [{"CPU": 2}, {"CPU": 4}]).total() == 6


class TestFile:
    def test_every_key_has_its_effect(self, config: FleetConfig, tmp_path: Path) -> None:
        path = tmp_path / "fleet.yaml"
        path.write_text(
            """
            clusters:
              a:
                nodes: 2x{CPU:8}
                speed: 1.5
                latency: 20ms
                agent_start: 10s
                snapshot_every: 1min
                snapshot_delay: 1
                snapshot_loss: 0.1
                crashes_per_hour: 0.5
                job_poll: 1s
                others: {share: 0.2, every: 10min, steps: [{at: 1h, share: 0.5}]}
              b: {nodes: [{CPU: 4}, {CPU: 2, memory: 1GiB}]}
            faults:
              - {at: 1h, cluster: a, what: cut, for: 10min}
              - {at: 2h, cluster: b, what: node_dies, node: 2}
            """
        )
        made = load_fleet(config, path)
        a, b = made.clusters
        assert a == SimulatedCluster(
            config.cluster("a").metadata(),
            ({"CPU": 8.0}, {"CPU": 8.0}),
            speed=1.5,
            latency_s=0.02,
            agent_start_s=10,
            snapshot_every_s=60,
            snapshot_delay_s=1,
            snapshot_loss=0.1,
            crashes_per_hour=0.5,
            job_poll_s=1,
            others=OthersLoad(0.2, 600, ((3600, 0.5),)),
        )
        assert b.nodes == ({"CPU": 4.0}, {"CPU": 2.0, "memory": 1024.0**3})
        assert made.faults == (PlannedFault(3600, "a", "cut", 600), PlannedFault(7200, "b", "node_dies", None, 2))
        assert made.settings == config.settings

    def test_command_line_overrides_the_file(self, config: FleetConfig, tmp_path: Path) -> None:
        path = tmp_path / "fleet.yaml"
        path.write_text("clusters: {a: {nodes: '{CPU:1}', speed: 3, latency: 1}, b: {nodes: '{CPU:1}@2'}}")
        a, b = load_fleet(config, path, {"a": "2x{CPU:4}"}).clusters
        assert (a.total(), a.speed, a.latency_s) == (8, 3, 1)
        assert (b.total(), b.speed) == (1, 2)
        assert load_fleet(config, path, {"a": "{CPU:4}@5"}).clusters[0].speed == 5

    @pytest.mark.parametrize(
        ("text", "output"),
        [
            ("clusters: {a: {nodes: '{CPU:1}'}}", "cluster b has no size"),
            ("clusters: {c: {nodes: '{CPU:1}'}}", "gives a size for 'c', which is not in"),
            ("clusters: {a: {speed: 2}}", "clusters.a.nodes: field required"),
            ("clusters: {a: {nodes: 4}}", "clusters.a.nodes: expected text such as 4x{CPU:16}"),
            ("clusters: {a: {nodes: 4x}}", "clusters.a.nodes: '4x'"),
            ("clusters: {a: {nodes: '{CPU:1}', speeed: 2}}", "clusters.a.speeed: extra inputs are not permitted"),
            ("clusters: {a: {nodes: '{CPU:1}', latency: x}}", "clusters.a.latency: 'x' is not a time"),
            ("clusters: []", "clusters: input should be a valid dictionary"),
            ("nodes: 3", "clusters: field required"),
        ],
    )
    def test_an_error_names_its_place(self, config: FleetConfig, tmp_path: Path, text: str, output: str) -> None:
        path = tmp_path / "fleet.yaml"
        path.write_text(text)
        with pytest.raises(ConfigurationError) as caught:
            load_fleet(config, path)
        assert output in caught.value.message

    def test_a_missing_file(self, config: FleetConfig, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
            load_fleet(config, tmp_path / "none.yaml")

    def test_an_invalid_size(self, config: FleetConfig) -> None:
        with pytest.raises(ConfigurationError, match="--nodes a: '4'"):
            load_fleet(config, None, {"a": "4", "b": "{CPU:1}"})


class TestModel:
    @pytest.mark.parametrize(
        ("values", "output"),
        [
            ({"nodes": ()}, "has no nodes"),
            ({"speed": 0.0}, "has the speed 0"),
            ({"snapshot_every_s": 0.0}, "has snapshot_every_s 0"),
            ({"snapshot_loss": 1.5}, "has snapshot_loss 1.5"),
            ({"latency_s": -1.0}, "has latency_s -1"),
        ],
    )
    def test_impossible_clusters(self, values: dict[str, object], output: str) -> None:
        with pytest.raises(ConfigurationError) as caught:
            SimulatedCluster(ClusterMetadata("a"), **{"nodes": ({"CPU": 1.0},), **values})  # type: ignore[arg-type]  # any
        assert output in caught.value.message

    @pytest.mark.parametrize(
        "fault",
        [
            lambda: PlannedFault(1, "a", "burns", 1),  # type: ignore[arg-type]  # on purpose
            lambda: PlannedFault(-1, "a", "cut", 1),
            lambda: PlannedFault(1, "a", "cut", 0),
            lambda: fleet(exact("a", "{CPU:1}"), faults=(PlannedFault(1, "b", "cut"),)),
            lambda: fleet(exact("a", "{CPU:1}"), faults=(PlannedFault(1, "a", "node_dies", node=2),)),
            lambda: SimulatedFleet(()),
            lambda: fleet(exact("a", "{CPU:1}"), exact("a", "{CPU:1}")),
            lambda: OthersLoad(1.5),
            lambda: OthersLoad(0.5, every_s=0.0),
            lambda: Workload([Item(-1, {}, 1)]),
            lambda: Workload([Item(0, {}, 1, members=0)]),
        ],
    )
    def test_an_invalid_fault_is_refused(self, fault: object) -> None:
        with pytest.raises(ConfigurationError) as caught:
            fault()  # type: ignore[operator]  # a lambda
        assert caught.value.next_step

    def test_capacity_is_by_speed_and_tag(self) -> None:
        where = fleet(exact("a", "2x{CPU:4}@2", tags=("x",)), exact("b", "{CPU:3}"))
        assert (where.capacity(), where.capacity(tag="x"), where.capacity("GPU")) == (19, 16, 0)


class TestLowerBound:
    WHERE = fleet(exact("a", "{CPU:4}@2", tags=("x",)), exact("b", "{CPU:2}"))

    @pytest.mark.parametrize(
        ("items", "expected"),
        [
            ([item(0, 1, 10) for _ in range(30)], 30),  # 300 CPU-seconds by 10 a second
            ([item(0, 1, 100)], 50),  # the longest, where it runs fastest
            ([item(0, 2, 10, require_tags=("x",)) for _ in range(8)], 20),  # 160 by the 8 that have the tag
            ([], 0),
        ],
    )
    def test_the_largest_of_three(self, items: list[Item], expected: float) -> None:
        assert lower_bound(self.WHERE, Workload(items)) == expected
