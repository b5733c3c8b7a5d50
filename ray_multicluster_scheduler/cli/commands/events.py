"""`rmcs events`: recent events of a service, and new ones as they happen, one line each."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from ray_multicluster_scheduler.app.client_api.cluster_rows import reason_text
from ray_multicluster_scheduler.app.client_api.remote.service_errors import no_response, not_a_service
from ray_multicluster_scheduler.cli.arguments import completion
from ray_multicluster_scheduler.cli.arguments.options import ByOwner, OfKind
from ray_multicluster_scheduler.cli.arguments.selectors import KINDS, LAST, STATES, find_item, warn_if_unknown_cluster
from ray_multicluster_scheduler.cli.arguments.usage_errors import check_choices
from ray_multicluster_scheduler.cli.layout.cluster_tables import cluster_state
from ray_multicluster_scheduler.cli.layout.output import Format, Output, as_text, notify, print_folded
from ray_multicluster_scheduler.cli.layout.times import parse_time
from ray_multicluster_scheduler.cli.service.client import Address, Service, api_path, connect
from ray_multicluster_scheduler.cli.service.item_wait import POLL_S, retry_while_away
from ray_multicluster_scheduler.common.exception import ServiceUnavailableError, UnknownItemError

_TYPES = ("transition", "decision", "cluster", "action", "pool_changed", "preempted", "resumed", "telemetry")
_REPLAY_TIMEOUT_S = 30.0
"""Past events come without a pause, with the number up to which the service has searched."""
_MAX_LAST = 1_000_000
_HEARTBEAT_TIMEOUT_S = 60.0
"""The service sends a heartbeat every 15 seconds."""


def events(
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Follow new events, until Ctrl+C.")] = False,
    types: Annotated[
        str | None,
        typer.Option(
            "--types",
            help="Only these, with commas: transition, decision, cluster, action, pool_changed, preempted, "
            "resumed, telemetry.",
            autocompletion=completion.words(*_TYPES),
        ),
    ] = None,
    item_id: Annotated[
        str | None, typer.Option("--id", help="Only of this item.", autocompletion=completion.ids(words=()))
    ] = None,
    owner: ByOwner = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", help="Only of this cluster.", autocompletion=completion.clusters)
    ] = None,
    state: Annotated[
        str | None,
        typer.Option("--state", help="Only into this state, such as FAILED.", autocompletion=completion.words(*STATES)),
    ] = None,
    kind: OfKind = None,
    since: Annotated[
        str | None,
        typer.Option("--since", help="Only after the event of this number, or of the last 12h, or since an ISO time."),
    ] = None,
    last: Annotated[
        int, typer.Option("--last", min=0, max=_MAX_LAST, help="So many of the latest, unless --since is given.")
    ] = 50,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Print recent events, and follow new ones.

    With -o json, one line for each event.
    """
    for option, given, known in (("--types", types, _TYPES), ("--state", state, STATES), ("--kind", kind, KINDS)):
        check_choices(option, filter(None, (given or "").split(",")), known)
    state = None if state is None else state.upper()
    start = None if since is None else _parse_since(since)
    service = connect(address)
    newest = newest_number(service)
    begin = None if start is None else _number_before(service, start, newest)
    filters = {"types": types, "id": item_id, "owner": owner, "cluster": cluster, "state": state, "kind": kind}
    if cluster is not None:
        warn_if_unknown_cluster(service, cluster)
    if item_id is not None:
        filters["id"] = _resolve_id(service, item_id)
    if follow and begin is not None:
        newest = begin
    past = latest(service, last, newest, filters) if begin is None else between(service, begin, newest, filters)
    found = False
    for event in past:
        _print(event, output)
        found = True
    if follow:
        for event in _following(service, newest, filters):
            _print(event, output)
    elif not found and (last or begin is not None):
        _report_none(service, newest, begin, item_id, filters["id"])


def _parse_since(text: str) -> int | float:
    """The number of an event, or a moment. Raises BadParameter."""
    if text.isdecimal():
        return int(text)
    moment = parse_time(text, time.time())
    if moment is None:
        message = f"{text!r} is no number of an event, and no time; write 1234, 12h or 2031-05-01T08:00."
        raise typer.BadParameter(message, param_hint="--since")
    return moment


def _number_before(service: Service, start: int | float, newest: int) -> int:
    """The number of the last event before this one, or before this time, which is found by bisection."""
    if isinstance(start, int):
        return start
    low, high = 0, newest
    while low < high:
        middle = (low + high) // 2
        times = (event["at"] for event in between(service, middle, newest, {}) if event.get("at") is not None)
        if next(times, start) < start:
            low = middle + 1
        else:
            high = middle
    return low


def _report_none(service: Service, newest: int, since: int | None, given: str | None, item_id: str | None) -> None:
    """Print why there are no events. Raises UnknownItemError for an item that never existed."""
    if since is not None and since >= newest:
        notify(f"there is no event after number {since}: the newest one is number {newest}")
        return
    if item_id is not None and given is not None:
        service.get(api_path("items", item_id))  # raises
    notify("no event matches; those older than keep_history_s were deleted")


def _resolve_id(service: Service, given: str) -> str:
    """The id for the beginning of one, or for `last`. An item that was deleted may still have events."""
    api_path("items", given)  # raises for an empty one
    try:
        found = find_item(service, given)
    except UnknownItemError:
        if given == LAST:
            raise
        return given
    if found != given:
        notify(f"showing {found}")
    return found


def newest_number(service: Service) -> int:
    """The number of the newest event, with which a stream begins. Raises ServiceUnavailableError if it does not."""
    try:
        for number, _ in _frames(service, {"types": "cluster"}, _HEARTBEAT_TIMEOUT_S):
            if number is not None:
                return number
    except TimeoutError as error:
        raise no_response(service.address, _HEARTBEAT_TIMEOUT_S) from error
    raise not_a_service(service.address, "no events")


def latest(service: Service, count: int, newest: int, filters: dict[str, str | None]) -> Iterator[dict[str, Any]]:
    """The latest matching events up to the newest. Searches further and further back: numbers of deleted events are
    missing, and most events may not match."""
    if count == 0:
        return
    for back in (2 * count, 100 * count, newest):
        begin = max(0, newest - back)
        found = deque(between(service, begin, newest, filters), count)
        if len(found) == count or begin == 0:
            break
    yield from found


def between(service: Service, begin: int, newest: int, filters: dict[str, str | None]) -> Iterator[dict[str, Any]]:
    """The events after ``begin`` up to the newest. Raises ServiceUnavailableError if the service does not report that
    it has searched all of them."""
    if begin >= newest:
        return
    searched = begin
    try:
        for number, event in _frames(service, {**filters, "since": begin}, _REPLAY_TIMEOUT_S):
            if number is not None and number > newest:
                return  # it is newer: --follow prints it
            if event is not None:
                yield event
            searched = searched if number is None else number
            if searched >= newest:
                return
    except TimeoutError:
        pass
    raise ServiceUnavailableError(
        f"{service.address} sent events up to number {searched} of {newest}, then nothing for {_REPLAY_TIMEOUT_S:g} s.",
        next_step=f"get the others with --since {searched}",
    )


def _following(service: Service, begin: int, filters: dict[str, str | None]) -> Iterator[dict[str, Any]]:
    """New events, without end and without gaps or repeats; waits for a service that is away."""
    last = begin
    while True:
        try:
            for number, event in _frames(service, {**filters, "since": last}, _HEARTBEAT_TIMEOUT_S):
                if event is not None:
                    yield event
                last = last if number is None else number
        except (ServiceUnavailableError, TimeoutError):
            pass  # the request below waits for it
        time.sleep(POLL_S)
        retry_while_away(lambda: service.get(api_path("fleet")), None)


def _frames(
    service: Service, query: dict[str, Any], timeout_s: float
) -> Iterator[tuple[int | None, dict[str, Any] | None]]:
    """Number and event of each complete frame of the stream of server-sent events."""
    rest = b""
    for chunk in service.stream(api_path("events"), timeout=timeout_s, **query):
        *frames, rest = (rest + chunk).split(b"\n\n")
        for frame in frames:
            fields = dict(line.partition(b": ")[::2] for line in frame.split(b"\n"))
            number, data = fields.get(b"id"), fields.get(b"data")
            yield None if number is None else int(number), None if data is None else json.loads(data)


def _print(event: dict[str, Any], output: Format) -> None:
    if output is Format.table:
        print_folded(event_line(event))
    else:
        typer.echo(as_text(event, output, compact=True))


def event_line(event: dict[str, Any]) -> str:
    """Time, number and text."""
    from datetime import datetime

    at = event.get("at")
    when = "" if at is None else datetime.fromtimestamp(at).astimezone().strftime("%H:%M:%S")
    return "  ".join((f"{when:8}", f"{event.get('number') or '':>6}", _event_text(event))).rstrip()


def _event_text(event: dict[str, Any]) -> str:
    where = f" on {event['cluster']}" if event.get("cluster") else ""
    match event["type"]:
        case "transition":
            return f"{event['id']} {event['state']}{where}: {event['code']}, {_first_line(event.get('sentence'))}"
        case "decision":
            return f"{event['id']} decided{where}: {_first_line(event.get('sentence') or event.get('code'))}"
        case "cluster" if event.get("cluster") and event.get("state"):
            why = _first_line(reason_text(event))
            return f"cluster {event['cluster']} is {cluster_state(event)}{f': {why}' if why else ''}"
        case "action":
            details = " ".join(f"{key}={_first_line(one)}" for key, one in (event.get("details") or {}).items() if one)
            text = " ".join(filter(None, (event.get("action"), event.get("subject"), details)))
            return f"action of {event.get('user') or 'an unknown user'}: {text}"
        case "pool_changed":
            return f"pool {event['pool']}: {event['change']}"
        case "missed":
            return f"events {event['from']} to {event['to']} were missed; request them with --since {event['from'] - 1}"
    known = ("type", "number", "at")
    return f"{event['type']} " + " ".join(
        f"{key}={_first_line(one)}" for key, one in event.items() if key not in known and one not in (None, "", {}, [])
    )


def _first_line(value: object) -> str:
    return str(value if value is not None else "").partition("\n")[0]
