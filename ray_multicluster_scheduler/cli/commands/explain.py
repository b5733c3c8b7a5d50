"""`rmcs explain`: why an item of a service, or of a running program, is in its state; or the meaning of a code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Annotated, Any

import typer

from ray_multicluster_scheduler.cli.arguments import completion
from ray_multicluster_scheduler.cli.arguments.selectors import LAST, find_item
from ray_multicluster_scheduler.cli.layout.lines import FoldedText, text_table
from ray_multicluster_scheduler.cli.layout.output import Format, Output, emit, is_terminal, notify
from ray_multicluster_scheduler.cli.service import local_programs
from ray_multicluster_scheduler.cli.service.client import Address, Service, api_path, connect, find_address
from ray_multicluster_scheduler.cli.troubleshooting import codes, section_of
from ray_multicluster_scheduler.common.exception import UnknownItemError

_TITLES = ("ID", "KIND", "NAME", "STATE", "CLUSTER", "CODE")


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
    """Explain the state of an item, or what a code means.

    Of an item: its state, the reason, its position in the queue, the verdict of each cluster, its attempts. The service
    is asked, if there is one, then your programs that run now. Of a code: what it means, and what to do.
    """
    if (item_id is None) != everything:
        raise typer.BadParameter("Give either an ID or --list.")
    if everything and address is not None:
        raise typer.BadParameter("--list is of your programs here, not of a service; `rmcs task list` has its items.")
    if item_id is None:
        _list_programs(output)
    elif not _print_code(item_id, output):
        _print_item(item_id, address, output)


def _print_code(code: str, output: Format) -> bool:
    """False: there is no such code."""
    text = section_of(code)
    if text is None:
        return False
    emit({"code": code, "text": text}, output, lambda: FoldedText(text, indent=0) if is_terminal() else text)
    return True


def _print_item(item_id: str, address: str | None, output: Format) -> None:
    api_path("items", item_id)  # raises for an empty one
    try:
        if not _print_from_service(item_id, address, output):
            _print_from_programs(item_id, find_address(address), output)
    except UnknownItemError as error:
        code = item_id.upper()
        if _print_code(code, output):
            return
        close = get_close_matches(code, codes(), 3, 0.7)
        if not close:
            raise
        text = f"{error.message} There is a code {' or '.join(close)}."
        raise UnknownItemError(text, task_id=item_id, next_step=f"`rmcs explain {close[0]}`, or give an id") from None


def _print_from_service(item_id: str, address: str | None, output: Format) -> bool:
    """False if there is no service, or it does not have the item. Raises UnknownItemError if it was named."""
    if find_address(address) is None:
        return False
    service = connect(address)
    try:
        explanation = _explanation(service, item_id)
    except UnknownItemError:
        if address is not None:
            raise
        return False
    emit(explanation, output, lambda: explanation_text(explanation, f"the service {service.address}"))
    return True


def _explanation(service: Service, selector: str) -> dict[str, Any]:
    """Tries the id as it is first, since members of gangs are found only by their full id."""
    try:
        if selector != LAST:
            return dict(service.get(api_path("items", selector, "explain")))
    except UnknownItemError:
        pass
    return dict(service.get(api_path("items", find_item(service, selector), "explain")))


def _print_from_programs(item_id: str, service: str | None, output: Format) -> None:
    """``service`` is the address of the service that was asked before."""
    from ray_multicluster_scheduler.control_plane.config.home import rmcs_home
    from ray_multicluster_scheduler.control_plane.store.state_folder import holder

    asked: list[str] = []
    here = holder(rmcs_home()) or {}
    for pid, answer in local_programs.query_all({"explain": item_id}):
        if "explain" in answer:
            program = answer["program"]
            explanation, source = answer["explain"], f"process {program['pid']}: {program['command']}"
            emit(explanation, output, partial(explanation_text, explanation, source))
            return
        if service is not None and (pid, service) == (here.get("pid"), here.get("address")):
            continue  # it was asked over HTTP
        asked.append(f"process {pid}" + ("" if answer.get("error") == "UnknownItemError" else f" ({_problem(answer)})"))
    raise local_programs.unknown_everywhere(item_id, asked, service)


def _list_programs(output: Format) -> None:
    answers, failed = [], False
    for pid, answer in local_programs.query_all({"list": True}):
        if "items" in answer:
            answers.append(answer)
        else:
            failed = True
            notify(f"process {pid} did not list its items: {_problem(answer)}")
    if answers or not failed or output is not Format.table:
        emit(answers, output, lambda: FoldedText(partial(_programs_text, answers)))


def explanation_text(explanation: Mapping[str, Any], source: str) -> FoldedText:
    """The explanation for people, and where it comes from."""
    from ray_multicluster_scheduler.control_plane.runtime import explanation_text as texts

    def text(width: int) -> str:
        table = text_table(width - len(texts.MARGIN))
        return f"{texts.explanation_text(explanation, table)}\n\nSource: {source}"

    return FoldedText(text)


def _programs_text(answers: Sequence[Mapping[str, Any]], width: int) -> str:
    if not answers:
        return "No program of yours with a scheduler runs now."
    parts = []
    for answer in answers:
        rows = [
            (one["id"], one["kind"], _name(one), one["state"], one["cluster"] or "–", one["code"])
            for one in answer["items"]
        ]
        program, more = answer["program"], answer.get("more")
        table = text_table(width)(_TITLES, rows) if rows else "it has no items, or has deleted all of them"
        omitted = f"\nand {more} older ones" if more else ""
        parts.append(f"process {program['pid']}: {program['command']}\n{table}{omitted}")
    return "\n\n".join(parts)


def _name(row: Mapping[str, Any]) -> str:
    """Of an actor, its class and its own name."""
    given = row.get("actor_name")  # missing in answers of an older version
    return str(row["name"]) if given is None else f"{row['name']} {given!r}"


def _problem(answer: Mapping[str, Any]) -> str:
    return str(answer.get("message") or "no answer")
