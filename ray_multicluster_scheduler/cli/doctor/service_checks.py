"""Checks a service: does it answer, accept the token, run this version, write fast, and reach its clusters?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import inf
from typing import Any

from ray_multicluster_scheduler import __version__
from ray_multicluster_scheduler.app.client_api.cluster_rows import cordon_text, pause_text
from ray_multicluster_scheduler.app.client_api.remote.service_errors import ServiceUnreachableError
from ray_multicluster_scheduler.cli.doctor.findings import Finding, ok, problem, split_sentence, warning
from ray_multicluster_scheduler.cli.doctor.local_checks import disk_space
from ray_multicluster_scheduler.cli.service.client import Service, api_path, connect, describe_killed, killed_service
from ray_multicluster_scheduler.cli.service.cluster_queries import current_clusters, needs_gateway
from ray_multicluster_scheduler.common.exception import SchedulerError
from ray_multicluster_scheduler.control_plane.config.home import rmcs_home
from ray_multicluster_scheduler.control_plane.store.state_folder import holder

ANSWER_S = 30.0
SLOW_S = 0.5
"""The limit of the 99th percentile of writes, as in examples/monitoring."""
NEARLY_FULL = 0.9
_METRIC = re.compile(r'^(?P<name>rmcs_store_\w+?)(\{le="(?P<bound>[^"]+)"\})? (?P<value>\S+)$', re.MULTILINE)


def no_service() -> Finding:
    """The finding that there is no service to check, and its reason."""
    if holder(rmcs_home()) is not None:
        return warning("service", f"the one of {rmcs_home()} is just starting", "ask again in a moment")
    dead = killed_service()
    if dead is not None:
        return problem("service", describe_killed(dead), "start it again with `rmcs up`: it recovers its items")
    return ok("service", "none runs here: programs use a scheduler of their own")


def check_service(address: str) -> tuple[list[Finding], dict[str, Any] | None]:
    """Findings, and the service's description of itself; None: it does not answer."""
    try:
        service = connect(address, answer_s=ANSWER_S)
        about: dict[str, Any] = service.get(api_path("fleet"))
    except SchedulerError as error:
        return [_no_answer(address, error)], None
    you = about["you"]
    found = [ok("service", f"{address} answers; you are {you['user']} ({', '.join(you['roles'])})")]
    if about["version"] == __version__:
        found.append(ok("service", f"it runs version {__version__}, as this one"))
    else:
        says = f"it runs version {about['version']}, and this is {__version__}"
        fix = "upgrade the older one: `rmcs down --away 600`, install, `rmcs up`"
        found.append(warning("service", says, fix))
    for check in (_check_ready, _check_store, _check_clusters):
        try:
            found += check(service)
        except SchedulerError as error:
            found.append(problem("service", error.message, error.next_step or "", error.code))
    return found, about


def _no_answer(address: str, error: SchedulerError) -> Finding:
    dead = killed_service()
    if isinstance(error, ServiceUnreachableError) and dead is not None and dead.address == address:
        says = f"{error.message.rstrip('.')}; {describe_killed(dead)}"
        return problem("service", says, "start it again with `rmcs up`: it recovers its items", error.code)
    return problem("service", error.message, error.next_step or "", error.code)


def _check_ready(service: Service) -> Iterator[Finding]:
    service.get("/readyz")
    yield ok("service", "it can accept work")


def _check_store(service: Service) -> Iterator[Finding]:
    """From its metrics."""
    metrics: dict[str, float] = {}
    writes: list[tuple[float, float]] = []
    for one in _METRIC.finditer(service.fetch("/metrics").decode()):
        if one["bound"] is not None:
            writes.append((inf if one["bound"] == "+Inf" else float(one["bound"]), float(one["value"])))
        else:
            metrics[one["name"]] = float(one["value"])
    if "rmcs_store_free_bytes" in metrics:  # missing in answers of an older version
        yield disk_space("store", metrics["rmcs_store_free_bytes"], "for the store of the service")
    used, quota = metrics.get("rmcs_store_blob_bytes", 0.0), metrics.get("rmcs_store_blob_quota_bytes", inf)
    if used > NEARLY_FULL * quota:
        says = f"payloads and results take {used:,.0f} of {quota:,.0f} bytes (payload_quota_bytes)"
        yield warning("store", says, "shorten keep_payloads_s, or raise the quota", "STORE_FULL")
    p99 = _percentile99(writes)
    if p99 > SLOW_S:
        says = f"one write in a hundred took more than {SLOW_S:g} s, and submits wait for it"
        yield warning("store", says, "put its state folder on a faster disk, or see what else uses that disk")
    elif p99:
        yield ok("store", f"99 of 100 writes were durable within {p99 * 1000:g} ms")


def _percentile99(writes: list[tuple[float, float]]) -> float:
    """Of a histogram of durations; 0 if it is empty."""
    total = writes[-1][1] if writes else 0.0
    return next((bound for bound, count in writes if count >= 0.99 * total), inf) if total else 0.0


def _check_clusters(service: Service) -> Iterator[Finding]:
    """As the service reaches them from its machine; starts nothing."""
    rows = current_clusters(service, refresh_all=True)
    for row in rows:
        name = str(row["name"])
        if needs_gateway(row):
            step = f"`rmcs clusters check {name}` starts one"
            yield ok(name, f"it has no dashboard, so only a gateway there can report its state; {step}")
        elif row["state"] != "UP":
            says, fix = split_sentence(str(row["sentence"]))
            again = f"`rmcs clusters check {name}` lets the service check it again"
            fix = "; ".join(filter(None, (fix, again)))
            yield problem(name, f"the service reports: {says}", fix, str(row["state"]))
        if row["cordoned"]:
            says = f"{cordon_text(row) or 'it is cordoned'}: it gets no new work"
            yield warning(name, says, f"`rmcs clusters uncordon {name}`", "CORDONED")
        if paused := pause_text(row):
            yield warning(name, paused, f"`rmcs queue resume --cluster {name}`", "QUEUE_PAUSED")
    checked = [row for row in rows if not needs_gateway(row)]
    if checked and all(row["state"] == "UP" for row in checked):
        yield ok("service", f"it reaches {', '.join(str(row['name']) for row in checked)}")
