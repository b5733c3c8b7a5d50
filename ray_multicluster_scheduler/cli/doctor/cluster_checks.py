"""What commonly goes wrong between here and a cluster. All are looked at side by side; nothing is started there."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from ray_multicluster_scheduler.cli.doctor.findings import Finding, doubtful, well, wrong
from ray_multicluster_scheduler.common.exception import SchedulerError
from ray_multicluster_scheduler.control_plane.config import ClusterConfig
from ray_multicluster_scheduler.control_plane.config.config_warnings import NO_TOKEN, SAME_CLUSTER, doubts, same_cluster
from ray_multicluster_scheduler.scheduler.connection.agents.agent_launcher import AGENT_KEY, CONTROL_PLANE_KEY
from ray_multicluster_scheduler.scheduler.connection.dashboard.dashboard_client import DashboardClient
from ray_multicluster_scheduler.scheduler.connection.job_client_pool import JobClientPool

SKEW_S = 5.0
KNOCK_S = 3.0


async def look(clusters: tuple[ClusterConfig, ...], control_plane: str | None) -> list[Finding]:
    """``control_plane`` is the service's own name for itself, by which its agents are told from others'."""
    pool = JobClientPool({one.name: one for one in clusters})
    sessions: dict[str, str | None] = {}
    try:
        found = await asyncio.gather(*(_collect(one, pool, control_plane, sessions) for one in clusters))
    finally:
        await pool.close()
    return [one for some in found for one in some] + list(_several_names(clusters, sessions))


def _several_names(clusters: tuple[ClusterConfig, ...], sessions: Mapping[str, str | None]) -> Iterator[Finding]:
    """One cluster under several names, by its address or by what Ray calls the session that runs there."""
    by_address = [one for one in doubts(clusters) if one.code == SAME_CLUSTER]
    names: dict[str, list[str]] = {}
    for cluster in clusters:
        session = sessions.get(cluster.name)
        if session:
            names.setdefault(session, []).append(cluster.name)
    by_session = [
        same_cluster(several, f"Ray's session {session}")
        for session, several in names.items()
        if len(several) > 1 and not any(set(several) == set(one.clusters) for one in by_address)
    ]
    odd = [one for one in by_address if not any(set(one.clusters) < set(wider.clusters) for wider in by_session)]
    for one in (*odd, *by_session):
        yield doubtful(", ".join(one.clusters), one.sentence, one.mend, one.code)


async def _collect(
    cluster: ClusterConfig, pool: JobClientPool, control_plane: str | None, sessions: dict[str, str | None]
) -> list[Finding]:
    return [finding async for finding in _all_of(cluster, pool, control_plane, sessions)]


async def _all_of(
    cluster: ClusterConfig, pool: JobClientPool, control_plane: str | None, sessions: dict[str, str | None]
) -> AsyncIterator[Finding]:
    """``sessions`` is told what runs there."""
    name = cluster.name
    if cluster.head_address is not None:
        yield await _head(
            name, cluster.head_address, needed=cluster.dashboard is None or cluster.carrier == "ray_client"
        )
    for doubt in doubts((cluster,)):
        if doubt.code == NO_TOKEN and cluster.dashboard is not None:
            continue  # that is said when it is asked
        yield doubtful(name, doubt.sentence, doubt.mend, doubt.code)
    if cluster.dashboard is None:
        return
    try:
        client = pool.client(name)
        snapshot = await client.snapshot(time.time())
    except SchedulerError as error:
        yield wrong(name, error.message, error.next_step or "", error.code)
        return
    sessions[name] = snapshot.session_id
    nodes = f"{len(snapshot.nodes)} node{'' if len(snapshot.nodes) == 1 else 's'}"
    yield well(name, f"{cluster.dashboard} answers: Ray {snapshot.ray_version}, {nodes}")
    for look_at in (_clock, _agents):
        try:
            yield await look_at(client, control_plane)
        except SchedulerError as error:
            yield doubtful(name, error.message, error.next_step or "", error.code)


async def _head(name: str, address: str, *, needed: bool) -> Finding:
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(KNOCK_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except (OSError, TimeoutError) as error:
        why = os.strerror(error.errno) if error.errno else "no answer"  # asyncio's own words name the address again
        tell = wrong if needed else doubtful
        return tell(name, f"nobody listens at head_address {address}: {why}", "start the head, or correct the address")
    writer.close()
    return well(name, f"head_address {address} can be reached")


async def _clock(client: DashboardClient, _: str | None) -> Finding:
    asked = time.time()
    there = await client.clock()
    if there is None:
        return well(client.name, "it does not say what time it is")
    middle = (asked + time.time()) / 2
    off = there - middle
    if abs(off) <= SKEW_S:
        return well(client.name, "its clock agrees with ours")
    says = f"its clock is {abs(off):.0f} s {'ahead of' if off > 0 else 'behind'} ours, so times in logs do not agree"
    return doubtful(client.name, says, "let both follow the same time server (NTP)")


async def _agents(client: DashboardClient, control_plane: str | None) -> Finding:
    """Others' agents are no fault, but each control plane keeps its own limits only."""
    agents = [job for job in await client.list_jobs() if _runs_an_agent(job)]
    others = {str((job["metadata"] or {}).get(CONTROL_PLANE_KEY)) for job in agents} - {control_plane}
    if not others:
        return well(client.name, "no agents of other control planes")
    named = ", ".join(sorted(others)[:3])
    planes = "1 other control plane has" if len(others) == 1 else f"{len(others)} other control planes have"
    says = f"{planes} agents there ({named}); each keeps its own limits only"
    return doubtful(
        client.name, says, "if nobody runs them on purpose, end those programs; their agents end with their lease"
    )


def _runs_an_agent(job: dict[str, Any]) -> bool:
    return job.get("status") == "RUNNING" and AGENT_KEY in (job.get("metadata") or {})
