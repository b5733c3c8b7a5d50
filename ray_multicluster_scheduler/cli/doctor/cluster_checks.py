"""Checks each cluster from this machine: addresses, dashboard, token, clock, agents of others; starts nothing there."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Mapping

from ray_multicluster_scheduler.cli.doctor.findings import Finding, ok, problem, warning
from ray_multicluster_scheduler.common.exception import SchedulerError
from ray_multicluster_scheduler.control_plane.config import ClusterConfig
from ray_multicluster_scheduler.control_plane.config.config_warnings import (
    NO_TOKEN,
    SAME_CLUSTER,
    config_warnings,
    same_cluster_warning,
)
from ray_multicluster_scheduler.scheduler.connection.agents.agent_launcher import AGENT_KEY, CONTROL_PLANE_KEY
from ray_multicluster_scheduler.scheduler.connection.agents.lingering_agents import LingeringAgents
from ray_multicluster_scheduler.scheduler.connection.dashboard.dashboard_client import DashboardClient
from ray_multicluster_scheduler.scheduler.connection.job_client_pool import JobClientPool

MAX_CLOCK_SKEW_S = 5.0
CONNECT_S = 3.0


async def check_clusters(clusters: tuple[ClusterConfig, ...], control_plane: str | None) -> list[Finding]:
    """``control_plane`` is the id of the service, which its agents carry."""
    pool = JobClientPool({one.name: one for one in clusters})
    sessions: dict[str, str | None] = {}
    try:
        found = await asyncio.gather(*(_check_cluster(one, pool, control_plane, sessions) for one in clusters))
    finally:
        await pool.close()
    return [one for some in found for one in some] + list(_duplicates(clusters, sessions))


def _duplicates(clusters: tuple[ClusterConfig, ...], sessions: Mapping[str, str | None]) -> Iterator[Finding]:
    """One cluster under several names: the same address, or the same Ray session."""
    by_address = [one for one in config_warnings(clusters) if one.code == SAME_CLUSTER]
    names: dict[str, list[str]] = {}
    for cluster in clusters:
        if session := sessions.get(cluster.name):
            names.setdefault(session, []).append(cluster.name)
    by_session = [
        same_cluster_warning(several, f"Ray's session {session}")
        for session, several in names.items()
        if len(several) > 1 and not any(set(several) == set(one.clusters) for one in by_address)
    ]
    others = [one for one in by_address if not any(set(one.clusters) < set(wider.clusters) for wider in by_session)]
    for one in (*others, *by_session):
        yield warning(", ".join(one.clusters), one.sentence, one.fix, one.code)


async def _check_cluster(
    cluster: ClusterConfig, pool: JobClientPool, control_plane: str | None, sessions: dict[str, str | None]
) -> list[Finding]:
    """Also adds the Ray session of the cluster to ``sessions``."""
    name, found = cluster.name, list[Finding]()
    if cluster.head_address is not None:
        needed = cluster.dashboard is None or cluster.carrier == "ray_client"
        found.append(await _check_head(name, cluster.head_address, needed=needed))
    for one in config_warnings((cluster,)):
        if one.code != NO_TOKEN or cluster.dashboard is None:  # the request below reports a missing token
            found.append(warning(name, one.sentence, one.fix, one.code))
    if cluster.dashboard is None:
        return found
    try:
        client = pool.client(name)
        snapshot = await client.snapshot(time.time())
    except SchedulerError as error:
        return [*found, problem(name, error.message, error.next_step or "", error.code)]
    sessions[name] = snapshot.session_id
    nodes = f"{len(snapshot.nodes)} node{'' if len(snapshot.nodes) == 1 else 's'}"
    found.append(ok(name, f"{cluster.dashboard} answers: Ray {snapshot.ray_version}, {nodes}"))
    for check in (_check_clock, _check_agents):
        try:
            found.append(await check(client, control_plane))
        except SchedulerError as error:
            found.append(warning(name, error.message, error.next_step or "", error.code))
    return found


async def _check_head(name: str, address: str, *, needed: bool) -> Finding:
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except (OSError, TimeoutError) as error:
        why = os.strerror(error.errno) if error.errno else "no answer"  # the message of asyncio repeats the address
        says = f"nothing listens at head_address {address}: {why}"
        return (problem if needed else warning)(name, says, "start the head, or correct the address")
    writer.close()
    return ok(name, f"head_address {address} can be reached")


async def _check_clock(client: DashboardClient, _: str | None) -> Finding:
    asked = time.time()
    cluster_time = await client.clock()
    if cluster_time is None:
        return ok(client.name, "it does not report its time")
    middle = (asked + time.time()) / 2
    off = cluster_time - middle
    if abs(off) <= MAX_CLOCK_SKEW_S:
        return ok(client.name, "its clock agrees with ours")
    says = f"its clock is {abs(off):.0f} s {'ahead of' if off > 0 else 'behind'} ours, so times in logs differ"
    return warning(client.name, says, "synchronize both with the same time server (NTP)")


async def _check_agents(client: DashboardClient, control_plane: str | None) -> Finding:
    """Agents of another control plane are only a warning: each one applies its own limits."""
    idle = await asyncio.to_thread(LingeringAgents(0.0).names)
    jobs = [job for job in await client.list_jobs() if job.get("submission_id") not in idle]
    running = [job.get("metadata") or {} for job in jobs if job.get("status") == "RUNNING"]
    others = {str(one.get(CONTROL_PLANE_KEY)) for one in running if AGENT_KEY in one} - {control_plane}
    if not others:
        return ok(client.name, "no agents of other control planes")
    named = ", ".join(sorted(others)[:3])
    planes = "1 other control plane has" if len(others) == 1 else f"{len(others)} other control planes have"
    says = f"{planes} agents there ({named}); each applies its own limits only"
    return warning(client.name, says, "if they are not wanted, end those programs; their agents end with their lease")
