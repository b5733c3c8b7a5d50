"""What commonly goes wrong with a service: it was killed, lets nobody in, is of another version, slow, full, or cannot
reach its clusters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import inf
from typing import Any

from ray_multicluster_scheduler import __version__
from ray_multicluster_scheduler.app.client_api.cluster_rows import pause_words
from ray_multicluster_scheduler.app.client_api.remote.service_errors import NobodyAnswersError
from ray_multicluster_scheduler.cli.doctor.findings import Finding, doubtful, well, wrong
from ray_multicluster_scheduler.cli.doctor.local_checks import room
from ray_multicluster_scheduler.cli.service.client import Service, connect, path_of, until_when, was_killed
from ray_multicluster_scheduler.cli.service.passive_queries import clusters_asked, is_known_only_by_a_gateway
from ray_multicluster_scheduler.common.exception import SchedulerError
from ray_multicluster_scheduler.control_plane.config.home import rmcs_home
from ray_multicluster_scheduler.control_plane.store.state_folder import holder

PATIENCE_S = 30.0
SLOW_S = 0.5
"""As examples/monitoring has it: more than this for one write in a hundred."""
NEARLY_FULL = 0.9
_FIGURE = re.compile(r'^(?P<name>rmcs_store_\w+?)(\{le="(?P<bound>[^"]+)"\})? (?P<value>\S+)$', re.MULTILINE)


def none_found() -> Finding:
    """Why nobody can be asked."""
    if holder(rmcs_home()) is not None:
        return doubtful("service", f"one that has {rmcs_home()} is just starting", "ask again in a moment")
    dead = was_killed()
    if dead is not None:
        return wrong("service", until_when(dead), "start it again with `rmcs up`: it takes up what it knows")
    return well("service", "none runs here: programs bring their own scheduler along")


def look(address: str) -> tuple[list[Finding], dict[str, Any] | None]:
    """Does it answer, does it let us in, can it accept work, and what does it think of its store and its clusters? Also
    what it says of itself."""
    try:
        asked = connect(address, answer_s=PATIENCE_S)
        about: dict[str, Any] = asked.get(path_of("fleet"))
    except SchedulerError as error:
        return [_no_answer(address, error)], None
    you = about["you"]
    found = [well("service", f"{address} answers; you are {you['user']} ({', '.join(you['roles'])})"), _version(about)]
    for part in (_ready, _store, _clusters):
        try:
            found += part(asked)
        except SchedulerError as error:
            found.append(wrong("service", error.message, error.next_step or "", error.code))
    return found, about


def _no_answer(address: str, error: SchedulerError) -> Finding:
    dead = was_killed()
    if isinstance(error, NobodyAnswersError) and dead is not None and dead.address == address:
        says = f"{error.message.rstrip('.')}; {until_when(dead)}"
        return wrong("service", says, "start it again with `rmcs up`: it takes up what it knows", error.code)
    return wrong("service", error.message, error.next_step or "", error.code)


def _version(about: dict[str, Any]) -> Finding:
    if about["version"] == __version__:
        return well("service", f"it runs version {__version__}, as this one")
    says = f"it runs version {about['version']}, and this is {__version__}"
    return doubtful("service", says, "upgrade the older one: `rmcs down --away 600`, install, `rmcs up`")


def _ready(asked: Service) -> Iterator[Finding]:
    asked.get("/readyz")
    yield well("service", "it can accept work")


def _store(asked: Service) -> Iterator[Finding]:
    """By the figures that it gives to whoever watches it."""
    figures: dict[str, float] = {}
    writes: list[tuple[float, float]] = []
    for one in _FIGURE.finditer(asked.fetch("/metrics").decode()):
        if one["bound"] is not None:
            writes.append((inf if one["bound"] == "+Inf" else float(one["bound"]), float(one["value"])))
        else:
            figures[one["name"]] = float(one["value"])
    if "rmcs_store_free_bytes" in figures:  # one of another version may not tell
        yield room("store", figures["rmcs_store_free_bytes"], "where the service keeps its record")
    kept, most = figures.get("rmcs_store_blob_bytes", 0.0), figures.get("rmcs_store_blob_quota_bytes", inf)
    if kept > NEARLY_FULL * most:
        says = f"payloads and results take {kept:,.0f} of {most:,.0f} bytes (payload_quota_bytes)"
        yield doubtful("store", says, "shorten keep_payloads_s, or raise the quota", "STORE_FULL")
    longest = _longest(writes)
    if longest > SLOW_S:
        says = f"one write in a hundred took more than {SLOW_S:g} s, and whoever submits waits for it"
        yield doubtful("store", says, "put its state folder on a faster disk, or see what else is busy there")
    elif longest:
        yield well("store", f"99 of 100 writes were durable within {longest * 1000:g} ms")


def _longest(writes: list[tuple[float, float]]) -> float:
    """What 99 of 100 did not take longer than; 0 if there were none."""
    total = writes[-1][1] if writes else 0.0
    return next((bound for bound, count in writes if count >= 0.99 * total), inf) if total else 0.0


def _clusters(asked: Service) -> Iterator[Finding]:
    """As it sees them, from its machine, now. Nothing is started for that."""
    rows = clusters_asked(asked)
    for row in rows:
        name = str(row["name"])
        if is_known_only_by_a_gateway(row):
            step = f"`rmcs clusters check {name}` asks it, and starts one"
            yield well(name, f"it has no dashboard, so only a gateway there can tell how it is; {step}")
        elif row["state"] != "UP":
            says, _, mend = str(row["sentence"]).partition(" What to do: ")
            asks = f"`rmcs clusters check {name}` lets the service ask it again"
            mend = "; ".join(filter(None, (mend, asks)))
            yield wrong(name, f"the service has trouble with it: {says}", mend, str(row["state"]))
        if row["cordoned"]:
            yield doubtful(name, "it is cordoned: it gets no new work", f"`rmcs clusters uncordon {name}`", "CORDONED")
        if paused := pause_words(row):
            yield doubtful(name, paused, f"`rmcs queue resume --cluster {name}`", "QUEUE_PAUSED")
    looked_at = [row for row in rows if not is_known_only_by_a_gateway(row)]
    if looked_at and all(row["state"] == "UP" for row in looked_at):
        yield well("service", f"it reaches {', '.join(str(row['name']) for row in looked_at)}")
