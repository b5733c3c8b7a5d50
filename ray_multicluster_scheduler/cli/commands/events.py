"""`rmcs events`: what happened lately, or happens, one line each."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from ray_multicluster_scheduler.app.client_api.cluster_rows import why_words
from ray_multicluster_scheduler.app.client_api.remote.service_errors import not_a_service, silent
from ray_multicluster_scheduler.cli.arguments import completion
from ray_multicluster_scheduler.cli.arguments.options import ByOwner, OfKind
from ray_multicluster_scheduler.cli.arguments.selectors import KINDS, LAST, STATES, doubt_cluster, find_one
from ray_multicluster_scheduler.cli.arguments.usage_errors import check_known
from ray_multicluster_scheduler.cli.layout.output import Format, Output, as_text, cluster_state, say, show_fitting
from ray_multicluster_scheduler.cli.layout.times import moment_of
from ray_multicluster_scheduler.cli.service.client import Address, Service, connect, path_of

_PATH = path_of("events")
_TYPES = ("transition", "decision", "cluster", "action", "telemetry")
_SILENCE_S = 30.0
"""The past is told without a pause, and how far the service has looked; a service that is busy may take a while."""
_MOST_LAST = 1_000_000
_ALIVE_S = 60.0
"""The service says every 15 seconds that all is well."""


def events(
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with what comes, until Ctrl+C.")] = False,
    types: Annotated[
        str | None,
        typer.Option(
            "--types",
            help="Only these, with commas: transition, decision, cluster, action, telemetry.",
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
        typer.Option(
            "--since", help="Only what came after the event of this number, or in the last 12h, or since an ISO time."
        ),
    ] = None,
    last: Annotated[
        int, typer.Option("--last", min=0, max=_MOST_LAST, help="The last so many, unless --since is given.")
    ] = 50,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Tell what happened lately, and what happens.

    With -o json, one line for each event.
    """
    for option, said, known in (("--types", types, _TYPES), ("--state", state, STATES), ("--kind", kind, KINDS)):
        check_known(option, filter(None, (said or "").split(",")), known)
    state = None if state is None else state.upper()
    asked = None if since is None else _asked_since(since)
    service = connect(address)
    newest = newest_number(service)
    begin = None if asked is None else _number_of(service, asked, newest)
    wanted = {"types": types, "id": item_id, "owner": owner, "cluster": cluster, "state": state, "kind": kind}
    if cluster is not None:
        doubt_cluster(service, cluster)
    if item_id is not None:
        wanted["id"] = _id_of(service, item_id)
    if follow and begin is not None:
        newest = begin
    told = last_of(service, last, newest, wanted) if begin is None else past(service, begin, newest, wanted)
    found = False
    for event in told:
        _tell(event, output)
        found = True
    if follow:
        for event in _following(service, newest, wanted):
            _tell(event, output)
    elif not found and (last or begin is not None):
        _say_nothing(service, newest, begin, item_id, wanted["id"])


def _asked_since(text: str) -> int | float:
    """The number of an event, or a moment. Raises BadParameter."""
    if text.isdecimal():
        return int(text)
    moment = moment_of(text, time.time())
    if moment is None:
        said = f"{text!r} is no number of an event, and no time; write 1234, 12h or 2031-05-01T08:00."
        raise typer.BadParameter(said, param_hint="--since")
    return moment


def _number_of(service: Service, asked: int | float, newest: int) -> int:
    """After which all came that was asked for. Of a moment it is found as a word in a dictionary: a few events are
    looked at, each in the middle of those that are left."""
    if isinstance(asked, int):
        return asked
    low, high = 0, newest
    while low < high:
        middle = (low + high) // 2
        moments = (event["at"] for event in past(service, middle, newest, {}) if event.get("at") is not None)
        if next(moments, asked) < asked:
            low = middle + 1
        else:
            high = middle
    return low


def _say_nothing(service: Service, newest: int, since: int | None, said: str | None, item_id: str | None) -> None:
    """Why nothing was told. Raises UnknownItemError if nobody has ever heard of that item."""
    if since is not None and since >= newest:
        say(f"nothing came after number {since}: the newest event is number {newest}")
        return
    if item_id is not None and said is not None:
        service.get(path_of("items", item_id))  # raises
    say("no such event is known; what is older than keep_history_s was forgotten")


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
    """Of the last event that there was: a stream begins with it. Raises ServiceUnavailableError if it does not."""
    try:
        for number, _ in _frames(service, {"types": "cluster"}, _ALIVE_S):
            if number is not None:
                return number
    except TimeoutError as error:
        raise silent(service.address, _ALIVE_S) from error
    raise not_a_service(service.address, "nothing of events")


def last_of(service: Service, count: int, newest: int, wanted: dict[str, str | None]) -> Iterator[dict[str, Any]]:
    """The last so many up to the newest. It is looked further and further back for them: numbers of what was forgotten
    are gone, and most events may be of others."""
    if count == 0:
        return
    for back in (2 * count, 100 * count, newest):
        begin = max(0, newest - back)
        found = deque(past(service, begin, newest, wanted), count)
        if len(found) == count or begin == 0:
            break
    yield from found


def past(service: Service, begin: int, newest: int, wanted: dict[str, str | None]) -> Iterator[dict[str, Any]]:
    """Up to the newest. The service says how far it has looked, also where there is nothing. Raises
    ServiceUnavailableError if it does not say that it has looked so far."""
    from ray_multicluster_scheduler.common.exception import ServiceUnavailableError

    if begin >= newest:
        return
    looked = begin
    try:
        for number, event in _frames(service, {**wanted, "since": begin}, _SILENCE_S):
            if number is not None and number > newest:
                return  # it came since then: whoever follows is told of it as news
            if event is not None:
                yield event
            looked = looked if number is None else number
            if looked >= newest:
                return
    except TimeoutError:
        pass
    raise ServiceUnavailableError(
        f"{service.address} has told events up to number {looked} of {newest}, and then nothing for {_SILENCE_S:g} s.",
        next_step=f"ask for the others with --since {looked}",
    )


def _following(service: Service, begin: int, wanted: dict[str, str | None]) -> Iterator[dict[str, Any]]:
    """For ever; a service that is away is waited for, and nothing is missed or told twice: a number is known when its
    event is told."""
    from ray_multicluster_scheduler.cli.service.item_wait import LOOK_AGAIN_S, patiently
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
    if output is Format.table:
        show_fitting(event_line(event))
    else:
        typer.echo(as_text(event, output, compact=True))


def event_line(event: dict[str, Any]) -> str:
    """When, of which number, and what."""
    from datetime import datetime

    at = event.get("at")
    when = "" if at is None else datetime.fromtimestamp(at).astimezone().strftime("%H:%M:%S")
    return "  ".join((f"{when:8}", f"{event.get('number') or '':>6}", _words(event))).rstrip()


def _words(event: dict[str, Any]) -> str:
    where = f" on {event['cluster']}" if event.get("cluster") else ""
    match event["type"]:
        case "transition":
            return f"{event['id']} {event['state']}{where}: {event['code']}, {_first_line(event.get('sentence'))}"
        case "decision":
            return f"{event['id']} decided{where}: {_first_line(event.get('sentence') or event.get('code'))}"
        case "cluster" if event.get("cluster") and event.get("state"):
            why = _first_line(why_words(event))
            return f"cluster {event['cluster']} is {cluster_state(event)}{f': {why}' if why else ''}"
        case "action":
            details = " ".join(f"{key}={_first_line(one)}" for key, one in (event.get("details") or {}).items() if one)
            said = " ".join(filter(None, (event.get("action"), event.get("subject"), details)))
            return f"action of {event.get('user') or 'somebody'}: {said}"
        case "missed":
            return f"events {event['from']} to {event['to']} were missed; ask for them with --since {event['from'] - 1}"
    known = ("type", "number", "at")
    return f"{event['type']} " + " ".join(
        f"{key}={_first_line(one)}" for key, one in event.items() if key not in known and one not in (None, "", {}, [])
    )


def _first_line(value: object) -> str:
    return str(value if value is not None else "").partition("\n")[0]
