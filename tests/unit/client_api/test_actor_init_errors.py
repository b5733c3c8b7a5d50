"""What failed constructors leave in a cluster: found once, and never more than a few."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from ray_multicluster_scheduler.app.client_api.in_cluster import errors


class Store:
    """As the key-value store of a cluster."""

    def __init__(self) -> None:
        self.kept: dict[tuple[bytes, bytes], bytes] = {}

    def _internal_kv_put(self, key: bytes, value: bytes, *, overwrite: bool, namespace: bytes) -> None:
        self.kept[namespace, key] = value

    def _internal_kv_get(self, key: bytes, *, namespace: bytes) -> bytes | None:
        return self.kept.get((namespace, key))

    def _internal_kv_list(self, prefix: bytes, *, namespace: bytes) -> list[bytes]:
        return [key for space, key in self.kept if space == namespace and key.startswith(prefix)]

    def _internal_kv_del(self, key: bytes, *, namespace: bytes) -> None:
        self.kept.pop((namespace, key), None)


class Cluster:
    """Where constructors fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store, self._actor = Store(), ""
        context = SimpleNamespace(get_actor_id=lambda: self._actor)
        monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get_runtime_context=lambda: context))
        monkeypatch.setattr(errors, "_store", lambda: self.store)

    def fail(self, actor: str, error: Exception) -> None:
        self._actor = actor
        errors.store_init_error(error)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


def test_they_are_read_once(cluster: Cluster) -> None:
    cluster.fail("a" * 32, ValueError("bad"))
    cluster.fail("b" * 32, KeyError("other"))
    error = errors.take_init_error("a" * 32)
    assert isinstance(error, ValueError)
    assert error.args == ("bad",)
    assert errors.take_init_error("a" * 32) is None
    assert isinstance(errors.take_init_error("b" * 32), KeyError)
    assert not cluster.store.kept


def test_of_one_that_was_restarted_the_last_ones_count(cluster: Cluster) -> None:
    for number in range(3):
        cluster.fail("a" * 32, ValueError(number))
    error = errors.take_init_error("a" * 32)
    assert error is not None
    assert error.args == (2,)
    assert not cluster.store.kept


def test_unread_errors_are_dropped_beyond_the_limit(cluster: Cluster) -> None:
    many = [f"{number:032x}" for number in range(errors.MAX_STORED + 20)]
    for actor in reversed(many):  # not in the order of their ids
        cluster.fail(actor, ValueError(actor))
    assert len(cluster.store.kept) == errors.MAX_STORED
    assert errors.take_init_error(many[-1]) is None, "the oldest have gone"
    error = errors.take_init_error(many[0])
    assert error is not None
    assert error.args == (many[0],)


def test_too_large_error_is_dropped(cluster: Cluster) -> None:
    cluster.fail("a" * 32, ValueError("x" * 100_000))
    assert not cluster.store.kept
