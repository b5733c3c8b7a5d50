"""`rmcs events`: what happened lately, or happens, one line each."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from ray_multicluster_scheduler.app.client_api.events.event_filter import EventFilter
from ray_multicluster_scheduler.app.client_api.remote.refusals import not_a_service
from ray_multicluster_scheduler.cli import completion
from ray_multicluster_scheduler.cli.options import ByOwner, OfKind
from ray_multicluster_scheduler.cli.output import Format, Output, as_text, say
from ray_multicluster_scheduler.cli.selectors import LAST, STATES, doubt_cluster, find_one
from ray_multicluster_scheduler.cli.service import Address, Service, connect, path_of

_PATH = path_of("events")
_SILENCE_S = 2.0
"""The past is told without a pause; what does not come within this time will not come."""
_ALIVE_S = 60.0
"""The service says every 15 seconds that all is well."""


def events(
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with what comes, until Ctrl+C.")] = False,
    types: Annotated[
        str | None,
        typer.Option(
            "--types",
            help="Only these, with commas: transition, decision, cluster, action, telemetry.",
            autocompletion=completion.words("transition", "decision", "cluster", "action", "telemetry"),
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
        typer.Option("--state", help="Only into this state.", autocompletion=completion.words(*STATES)),
    ] = None,
    kind: OfKind = None,
    since: Annotated[
        int | None, typer.Option("--since", min=0, help="Only what came after the event of this number.")
    ] = None,
    last: Annotated[
        int, typer.Option("--last", min=0, help="Of the last so many events, unless --since is given.")
    ] = 50,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Tell what happened lately, and what happens.

    With -o json, one line for each event.
    """
    service = connect(address)
    newest = newest_number(service)
    begin = max(0, newest - last) if since is None else since
    wanted = {"types": types, "id": item_id, "owner": owner, "cluster": cluster, "state": state, "kind": kind}
    EventFilter.of(wanted)  # what there is not is refused, also where everything is looked through here
    if cluster is not None:
        doubt_cluster(service, cluster)
    if item_id is not None:
        wanted["id"] = _id_of(service, item_id)
    if follow:
        for event in _following(service, begin, wanted):
            _tell(event, output)
        return
    for event in past(service, begin, newest, wanted):
        _tell(event, output)


def _id_of(service: Service, said: str) -> str:
    """The beginning of an id, or `last`; one that nobody knows (any more) may have events all the same."""
    from ray_multicluster_scheduler.common.exception import UnknownItemError

    path_of("items", said)  # raises for an empty one
    try:
        found = find_one(service, said)
    except UnknownItemError:
        if said == LAST:
            raise
        return said
    if found != said:
        say(f"{said} is taken for {found}")
    return found


def newest_number(service: Service) -> int:
    """Of the last event that there was: a stream begins with it."""
    for number, _ in _frames(service, {"types": "cluster"}, _ALIVE_S):
        if number is not None:
            return number
    raise not_a_service(service.address, "nothing of events")


def past(service: Service, begin: int, newest: int, wanted: dict[str, str | None]) -> Iterator[dict[str, Any]]:
    """Up to the newest. Everything is read, and looked through here, so that the end of it can be seen."""
    choose = {key: set(said.split(",")) for key, said in wanted.items() if said}
    kinds = choose.pop("types", None)
    if begin >= newest:
        return
    try:
        for _, event in _frames(service, {"since": begin}, _SILENCE_S):
            if event is None:
                continue
            if (kinds is None or event["type"] in kinds) and all(event.get(one) in choose[one] for one in choose):
                yield event
            if int(event.get("number") or 0) >= newest:
                return
    except TimeoutError:
        return


def _following(service: Service, begin: int, wanted: dict[str, str | None]) -> Iterator[dict[str, Any]]:
    """For ever; a service that is away is waited for, and nothing is missed or told twice: a number is known when its
    event is told."""
    from ray_multicluster_scheduler.cli.waiting import LOOK_AGAIN_S, patiently
    from ray_multicluster_scheduler.common.exception import ServiceUnavailableError

    last = begin
    while True:
        try:
            for number, event in _frames(service, {**wanted, "since": last}, _ALIVE_S):
                if event is not None:
                    yield event
                last = last if number is None else number
        except (ServiceUnavailableError, TimeoutError):
            pass  # it is waited for below, which says so
        time.sleep(LOOK_AGAIN_S)
        patiently(lambda: service.get(path_of("fleet")), None)


def _frames(
    service: Service, query: dict[str, Any], silence_s: float
) -> Iterator[tuple[int | None, dict[str, Any] | None]]:
    """Number and event of each whole frame of a stream of server-sent events. Half of one is not told."""
    rest = b""
    for piece in service.stream(_PATH, silence_s=silence_s, **query):
        *frames, rest = (rest + piece).split(b"\n\n")
        for frame in frames:
            said = dict(line.partition(b": ")[::2] for line in frame.split(b"\n"))
            number, data = said.get(b"id"), said.get(b"data")
            yield None if number is None else int(number), None if data is None else json.loads(data)


def _tell(event: dict[str, Any], output: Format) -> None:
    typer.echo(event_line(event) if output is Format.table else as_text(event, output, compact=True))


def event_line(event: dict[str, Any]) -> str:
    """When, of which number, and what."""
    from datetime import datetime

    at = event.get("at")
    when = "" if at is None else datetime.fromtimestamp(at).astimezone().strftime("%H:%M:%S")
    return "  ".join(word for word in (when, f"{event.get('number') or '':>6}", _words(event)) if word).rstrip()


def _words(event: dict[str, Any]) -> str:
    where = f" on {event['cluster']}" if event.get("cluster") else ""
    match event["type"]:
        case "transition":
            return f"{event['id']} {event['state']}{where}: {event['code']}, {_first_line(event.get('sentence'))}"
        case "decision":
            return f"{event['id']} decided{where}: {_first_line(event.get('sentence') or event.get('code'))}"
        case "missed":
            return f"events {event['from']} to {event['to']} were missed; ask for them with --since {event['from'] - 1}"
    known = ("type", "number", "at")
    return f"{event['type']} " + " ".join(
        f"{key}={_first_line(one)}" for key, one in event.items() if key not in known and one not in (None, "", {}, [])
    )


def _first_line(value: object) -> str:
    return str(value if value is not None else "").partition("\n")[0]
