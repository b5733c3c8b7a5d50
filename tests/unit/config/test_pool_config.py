"""``pools:`` in clusters.yaml: what is read, and what is reported when it is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.control_plane.config import FleetConfig, load_config
from ray_multicluster_scheduler.control_plane.config.pool_config import PoolConfig
from ray_multicluster_scheduler.control_plane.runtime.pools import definition_of, pool_of

CLUSTERS = "clusters:\n- {name: lab, head_address: 'h:1'}\n- {name: mac, head_address: 'h:2'}\n"


def load(folder: Path, text: str) -> FleetConfig:
    path = folder / "clusters.yaml"
    path.write_text(CLUSTERS + text)
    return load_config(path, {})


def test_all_keys(tmp_path: Path) -> None:
    text = """
pools:
  - name: train
    labels: {team: nlp}
    quota: {cpu: 16, GPU: 0, memory: 1GiB, licence: 0.5}
    cohort: research
    borrow_limit: {CPU: 4}
    lend_limit: {CPU: 0}
    reclaim: lower_priority
    priority: 2.5
    preemptible: true
    owners: [ann, ben]
  - name: lab
    cluster_quota: {lab: {CPU: 4}, mac: {CPU: 1}}
    protected: true
"""
    train, lab = load(tmp_path, text).pools
    assert train.quota == {"CPU": 16, "GPU": 0, "memory": 2**30, "licence": 0.5}, "0 means none, and is kept"
    assert train.lend_limit == {"CPU": 0}
    pool = pool_of(train)
    assert (pool.quota, pool.reclaim, pool.priority, pool.preemptible) == (train.quota, "lower_priority", 2.5, True)
    assert pool.owners == ("ann", "ben")
    assert str(pool_of(PoolConfig(name="p", priority=3)).priority) == "3", "a whole number stays whole"
    assert pool_of(lab).place_quota == {"lab": {"CPU": 4}, "mac": {"CPU": 1}}
    assert pool_of(lab).protected
    for one in (train, lab):
        assert definition_of(pool_of(one)) == {**one.model_dump(), "owners": list(one.owners)}


def test_none(tmp_path: Path) -> None:
    assert load(tmp_path, "").pools == load(tmp_path, "pools:\n").pools == load(tmp_path, "pools: []\n").pools == ()


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("pools: {name: a}", 4, "pools: expected a list, got a mapping"),
        ("pools: [a]", 4, r"pools\[0\]: expected a mapping, got text"),
        ("pools:\n- {quota: {CPU: 1}}", 5, r"pools\[0\], name: is missing"),
        ("pools:\n- {name: a, qota: {CPU: 1}}", 5, r"pool a, qota: unknown key \(did you mean 'quota'\?\)"),
        ("pools:\n- {name: a, dashboard: x}", 5, "it belongs to an entry of clusters"),
        ("cohort: a", 4, "it belongs to an entry of pools"),
        ("pools:\n- {name: a/b}", 5, "'a/b' is not a valid name of a pool"),
        ("pools:\n- {name: a, quota: {CPU: x}}", 5, r"pool a, quota: quota\['CPU'\] is 'x', not a number"),
        ("pools:\n- {name: a, quota: {memory: 1XB}}", 5, "'1XB' is not a size"),
        ("pools:\n- {name: a, quota: 4}", 5, "expected a mapping such as"),
        ("pools:\n- name: a\n  cluster_quota: {lab: {CPU: -1}}", 6, r"cluster_quota.lab: cluster_quota\['CPU'\] is -1"),
        (
            "pools:\n- name: a\n  cluster_quota: {lob: {CPU: 1}}",
            6,
            "there is no cluster 'lob'; the clusters are lab, mac",
        ),
        ("pools:\n- {name: a, quota: {CPU: 1}, cluster_quota: {lab: {CPU: 1}}}", 5, "has quota and cluster_quota"),
        ("pools:\n- {name: a, reclaim: any}", 5, "pool a: has reclaim: any, which needs a cohort"),
        ("pools:\n- {name: a, reclaim: all}", 5, "expected 'never', 'lower_priority' or 'any', got 'all'"),
        ("pools:\n- {name: a, cohort: c, protected: true, borrow_limit: {CPU: 1}}", 5, "so it cannot borrow"),
        ("pools:\n- {name: a, protected: 1}", 5, "expected a valid boolean"),
        ("pools:\n- {name: a, owners: ann}", 5, r"expected a list, for example \[ann\]"),
        ("pools:\n- {name: a, labels: {stage: 1}}", 5, "quote it"),
        ("pools:\n- name: a\n- name: a", 6, "the name 'a' is given twice"),
        (
            "pools:\n- {name: a, cohort: c}\n- {name: b, cohort: c, cluster_quota: {lab: {CPU: 1}}}",
            6,
            "pools a and b of the cohort c cannot lend to each other",
        ),
    ],
)
def test_problems_of_pools(tmp_path: Path, text: str, line: int, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, text)
    assert f"clusters.yaml, line {line}: " in caught.value.message
    assert re.search(words, caught.value.message), caught.value.message
