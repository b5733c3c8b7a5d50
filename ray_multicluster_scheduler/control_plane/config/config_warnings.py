"""What can be used as it is, and is hardly meant: said by `rmcs config check`, `rmcs doctor` and `rmcs up`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.control_plane.config.cluster_config import ClusterConfig

SAME_CLUSTER, NO_CARRIER, NO_TOKEN = "SAME_CLUSTER", "NO_CARRIER", "CLUSTER_MISCONFIGURED"


class Doubt(NamedTuple):
    """About these clusters; ``code`` is one that `rmcs explain CODE` knows."""

    clusters: tuple[str, ...]
    sentence: str
    mend: str
    code: str

    def to_dict(self) -> dict[str, object]:
        return {**self._asdict(), "clusters": list(self.clusters)}


def doubts(clusters: Sequence[ClusterConfig]) -> list[Doubt]:
    """Nobody is asked."""
    return [*_same_address(clusters), *_no_jobs_there(clusters), *_no_token(clusters)]


def same_cluster(names: Sequence[str], by: str) -> Doubt:
    """Several names for one cluster; ``by`` says what gave it away."""
    return Doubt(
        tuple(names),
        f"{' and '.join(names)} are one cluster under several names ({by}), so what is free there counts more than "
        "once, and limits and intervals hold for each name alone",
        "keep one of the names, and give what differs between them (a runtime_env, say) with each item",
        SAME_CLUSTER,
    )


def _same_address(clusters: Sequence[ClusterConfig]) -> Iterator[Doubt]:
    told: set[frozenset[str]] = set()
    for key in ("dashboard", "head_address"):
        names: dict[str, list[str]] = {}
        for one in clusters:
            address = getattr(one, key)
            if address is not None:
                names.setdefault(_host_in_lower_case(address), []).append(one.name)
        for address, several in names.items():
            if len(several) > 1 and frozenset(several) not in told:
                told.add(frozenset(several))
                yield same_cluster(several, f"the same {key}, {address}")


def _host_in_lower_case(address: str) -> str:
    """A path may differ by its case, a host may not."""
    scheme, mark, rest = address.rpartition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{mark}{host.lower()}{slash}{path}"


def _no_jobs_there(clusters: Iterable[ClusterConfig]) -> Iterator[Doubt]:
    for one in clusters:
        if one.dashboard is None:
            yield Doubt(
                (one.name,),
                f"{one.name} has a head_address and no dashboard: tasks and actors go there by Ray Client, and no jobs",
                f"add `dashboard: http://{one.head_address.rpartition(':')[0] if one.head_address else 'host'}:8265`, "
                "or where else its Jobs API is, if it has one",
                NO_CARRIER,
            )


def _no_token(clusters: Iterable[ClusterConfig]) -> Iterator[Doubt]:
    """A token is looked up at each use, so that it may come later; until then nothing can go there."""
    for one in clusters:
        try:
            one.resolve_token()
        except ConfigurationError as error:
            yield Doubt((one.name,), error.message.rstrip("."), error.next_step or "", NO_TOKEN)
