"""`rmcs explain`: why an item of a service, or of a program that runs now, is where it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Annotated, Any

import typer

from ray_multicluster_scheduler.cli.arguments import completion
from ray_multicluster_scheduler.cli.layout.lines import FittingLines
from ray_multicluster_scheduler.cli.layout.output import Format, Output, emit, is_terminal, say
from ray_multicluster_scheduler.cli.service.client import Address, Service, connect, find, path_of
from ray_multicluster_scheduler.cli.troubleshooting import codes, said_of

_LISTED = ("ID", "KIND", "NAME", "STATE", "CLUSTER", "CODE")


def explain(
    item_id: Annotated[
        str | None,
        typer.Argument(
            metavar="ID|CODE",
            help="An id (of a service also the beginning of one, or `last`), or a code.",
            autocompletion=completion.ids_and_codes,
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--list", help="List the items of your programs that run now instead.")
    ] = False,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Explain why an item is where it is, or what a code means.

    Its state, why, its position in the queue, what each cluster says, its attempts. The service is asked, if there is
    one, then your programs that run now. Of a code it tells what that means, and what to do.
    """
    if (item_id is None) != everything:
        raise typer.BadParameter("Give either an ID or --list.")
    if everything and address is not None:
        raise typer.BadParameter("--list is of your programs here, not of a service; `rmcs task list` has its items.")
    if item_id is None:
        _list_all(output)
    elif not _told_of_code(item_id, output):
        _tell_of_item(item_id, address, output)


def _told_of_code(code: str, output: Format) -> bool:
    said = said_of(code)
    if said is None:
        return False
    emit({"code": code, "text": said}, output, lambda: FittingLines(said, inwards=0) if is_terminal() else said)
    return True


def _tell_of_item(item_id: str, address: str | None, output: Format) -> None:
    from ray_multicluster_scheduler.common.exception import UnknownItemError

    path_of("items", item_id)  # raises for an empty one
    try:
        if not _told_by_service(item_id, address, output):
            _ask_programs(item_id, find(address), output)
    except UnknownItemError as error:
        code = item_id.upper()
        if _told_of_code(code, output):
            return
        near = get_close_matches(code, codes(), 3, 0.7)
        if not near:
            raise
        said = f"{error.message} There is a code {' or '.join(near)}."
        raise UnknownItemError(said, task_id=item_id, next_step=f"`rmcs explain {near[0]}`, or give an id") from None


def _told_by_service(item_id: str, address: str | None, output: Format) -> bool:
    """False if there is no service, or it does not know of it; one that was named has to. Raises UnknownItemError."""
    from ray_multicluster_scheduler.common.exception import UnknownItemError

    if find(address) is None:
        return False
    service = connect(address)
    try:
        story = _story(service, item_id)
    except UnknownItemError:
        if address is not None:
            raise
        return False
    emit(story, output, lambda: explanation_lines(story, f"the service {service.address}"))
    return True


def _story(service: Service, said: str) -> dict[str, Any]:
    """Of an id as it is: also members of gangs have one. Else of what it may stand for."""
    from ray_multicluster_scheduler.cli.arguments.selectors import LAST, find_one
    from ray_multicluster_scheduler.common.exception import UnknownItemError

    try:
        found = find_one(service, said) if said == LAST else said
        return dict(service.get(path_of("items", found, "explain")))
    except UnknownItemError:
        if said == LAST:
            raise
    return dict(service.get(path_of("items", find_one(service, said), "explain")))


def _ask_programs(item_id: str, service: str | None, output: Format) -> None:
    """``service`` is the address of the one that was asked before."""
    from ray_multicluster_scheduler.cli.service import local_programs
    from ray_multicluster_scheduler.control_plane.config.home import rmcs_home
    from ray_multicluster_scheduler.control_plane.store.state_folder import holder

    asked: list[str] = []
    here = holder(rmcs_home()) or {}
    for pid, answer in local_programs.ask_all({"explain": item_id}):
        if "explain" in answer:
            program = answer["program"]
            story, by = answer["explain"], f"process {program['pid']}: {program['command']}"
            emit(story, output, partial(explanation_lines, story, by))
            return
        if service is not None and (pid, service) == (here.get("pid"), here.get("address")):
            continue  # the same as was asked over HTTP
        asked.append(f"process {pid}" + ("" if answer.get("error") == "UnknownItemError" else f" ({_trouble(answer)})"))
    raise local_programs.nobody_knows(item_id, asked, service)


def _list_all(output: Format) -> None:
    from ray_multicluster_scheduler.cli.service import local_programs

    answers, silent = [], False
    for pid, answer in local_programs.ask_all({"list": True}):
        if "items" in answer:
            answers.append(answer)
        else:
            silent = True
            say(f"process {pid} did not say what it has: {_trouble(answer)}")
    if answers or not silent or output is not Format.table:
        emit(answers, output, lambda: FittingLines(partial(_listing, answers)))


def explanation_lines(story: Mapping[str, Any], by: str) -> FittingLines:
    """For people, and who told it."""
    from ray_multicluster_scheduler.cli.layout.columns import fitting_columns
    from ray_multicluster_scheduler.control_plane.runtime.explanation_text import MARGIN, explanation_text

    def told(width: int) -> str:
        return f"{explanation_text(story, fitting_columns(width - len(MARGIN)))}\n\nTold by {by}"

    return FittingLines(told)


def _listing(answers: Sequence[Mapping[str, Any]], width: int) -> str:
    from ray_multicluster_scheduler.cli.layout.columns import fitting_columns

    if not answers:
        return "No program of yours with a scheduler runs now."
    parts = []
    for answer in answers:
        rows = [
            (one["id"], one["kind"], _name(one), one["state"], one["cluster"] or "–", one["code"])
            for one in answer["items"]
        ]
        program, more = answer["program"], answer.get("more")
        table = fitting_columns(width)(_LISTED, rows) if rows else "nothing was submitted, or all of it was forgotten"
        cut = f"\nand {more} older ones" if more else ""
        parts.append(f"process {program['pid']}: {program['command']}\n{table}{cut}")
    return "\n\n".join(parts)


def _name(row: Mapping[str, Any]) -> str:
    """Of an actor its class, and the name by which others find it."""
    given = row.get("actor_name")  # a program with an older version does not say it
    return str(row["name"]) if given is None else f"{row['name']} {given!r}"


def _trouble(answer: Mapping[str, Any]) -> str:
    return str(answer.get("message") or "no answer")
