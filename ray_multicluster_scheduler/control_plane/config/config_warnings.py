"""Warnings about likely mistakes in a valid configuration: `rmcs config check`, `rmcs doctor` and `rmcs up` show
them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.control_plane.config.cluster_config import ClusterConfig

SAME_CLUSTER, NO_CARRIER, NO_TOKEN = "SAME_CLUSTER", "NO_CARRIER", "CLUSTER_MISCONFIGURED"


class ConfigWarning(NamedTuple):
    """A warning about clusters, and how to fix it; `rmcs explain CODE` explains its ``code``."""

    clusters: tuple[str, ...]
    sentence: str
    fix: str
    code: str

    def to_dict(self) -> dict[str, object]:
        return {"clusters": list(self.clusters), "sentence": self.sentence, "fix": self.fix, "code": self.code}


def config_warnings(clusters: Sequence[ClusterConfig]) -> list[ConfigWarning]:
    """All warnings that need no contact to the clusters."""
    return [*_same_address(clusters), *_no_dashboard(clusters), *_no_token(clusters)]


def same_cluster_warning(names: Sequence[str], by: str) -> ConfigWarning:
    """Several names for one cluster; ``by`` is the evidence."""
    return ConfigWarning(
        tuple(names),
        f"{' and '.join(names)} are one cluster under several names ({by}), so its free resources are counted "
        "repeatedly, and limits and intervals apply to each name alone",
        "keep one of the names, and set what differs (for example runtime_env) per item",
        SAME_CLUSTER,
    )


def _same_address(clusters: Sequence[ClusterConfig]) -> Iterator[ConfigWarning]:
    reported: set[frozenset[str]] = set()
    for key in ("dashboard", "head_address"):
        names: dict[str, list[str]] = {}
        for one in clusters:
            address = getattr(one, key)
            if address is not None:
                names.setdefault(_host_in_lower_case(address), []).append(one.name)
        for address, several in names.items():
            if len(several) > 1 and frozenset(several) not in reported:
                reported.add(frozenset(several))
                yield same_cluster_warning(several, f"the same {key}, {address}")


def _host_in_lower_case(address: str) -> str:
    """Case matters in a path, but not in a host."""
    scheme, mark, rest = address.rpartition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{mark}{host.lower()}{slash}{path}"


def _no_dashboard(clusters: Iterable[ClusterConfig]) -> Iterator[ConfigWarning]:
    for one in clusters:
        if one.dashboard is None:
            yield ConfigWarning(
                (one.name,),
                f"{one.name} has a head_address but no dashboard: tasks and actors use Ray Client, jobs cannot run",
                f"add `dashboard: http://{one.head_address.rpartition(':')[0] if one.head_address else 'host'}:8265`, "
                "or the actual address of its Jobs API, if it has one",
                NO_CARRIER,
            )


def _no_token(clusters: Iterable[ClusterConfig]) -> Iterator[ConfigWarning]:
    """A token is resolved at each use, so it may be set later; until then the cluster cannot be used."""
    for one in clusters:
        try:
            one.resolve_token()
        except ConfigurationError as error:
            yield ConfigWarning((one.name,), error.message.rstrip("."), error.next_step or "", NO_TOKEN)
