"""`rmcs explain`: why an item of a program that runs now is where it is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

from ray_multicluster_scheduler.cli.output import say
from ray_multicluster_scheduler.cli.troubleshooting import said_of

_LISTED = ("ID", "KIND", "NAME", "STATE", "CLUSTER", "REASON")


class Output(StrEnum):
    table = "table"
    json = "json"


def explain(
    item_id: Annotated[
        str | None, typer.Argument(metavar="ID|CODE", help="The id of a task, an actor or a job; or a reason's code.")
    ] = None,
    everything: Annotated[bool, typer.Option("--list", help="List the items of all programs instead.")] = False,
    output: Annotated[Output, typer.Option("-o", "--output", help="Text for people, JSON for programs.")] = (
        Output.table
    ),
) -> None:
    """Explain an item of one of your programs that run now: its state, why, its place in the queue, the candidates.

    With a code such as NO_CAPACITY, it says what that means and what to do.
    """
    from ray_multicluster_scheduler.cli import running_programs

    if (item_id is None) != everything:
        raise typer.BadParameter("Give either an ID or --list.")
    if item_id is None:
        _list_all(output)
        return
    if (said := said_of(item_id)) is not None:  # all capitals: no id of ours is
        say(_json({"code": item_id, "text": said}) if output is Output.json else said)
        return
    asked: list[str] = []
    for pid, answer in running_programs.ask_all({"explain": item_id}):
        if "explain" in answer:
            say(_json(answer["explain"]) if output is Output.json else _text(answer))
            return
        asked.append(f"process {pid}" + ("" if answer.get("error") == "UnknownItemError" else f" ({_trouble(answer)})"))
    raise running_programs.nobody_knows(item_id, asked)


def _list_all(output: Output) -> None:
    from ray_multicluster_scheduler.cli import running_programs

    answers, silent = [], False
    for pid, answer in running_programs.ask_all({"list": True}):
        if "items" in answer:
            answers.append(answer)
        else:
            silent = True
            say(f"process {pid} did not say what it has: {_trouble(answer)}", err=True)
    if output is Output.json:
        say(_json(answers))
    elif answers or not silent:
        say(_listing(answers))


def _text(answer: Mapping[str, Any]) -> str:
    from ray_multicluster_scheduler.app.client_api.explanation_text import explanation_text

    program = answer["program"]
    return f"{explanation_text(answer['explain'])}\n\nTold by process {program['pid']}: {program['command']}"


def _listing(answers: Sequence[Mapping[str, Any]]) -> str:
    from ray_multicluster_scheduler.common.decision_table import columns

    if not answers:
        return "No program of yours with a scheduler runs now."
    parts = []
    for answer in answers:
        rows = [
            (one["id"], one["kind"], _name(one), one["state"], one["cluster"] or "–", one["code"])
            for one in answer["items"]
        ]
        program, more = answer["program"], answer.get("more")
        table = columns(_LISTED, rows) if rows else "nothing was submitted, or all of it was forgotten"
        cut = f"\nand {more} older ones" if more else ""
        parts.append(f"process {program['pid']}: {program['command']}\n{table}{cut}")
    return "\n\n".join(parts)


def _name(row: Mapping[str, Any]) -> str:
    """Of an actor its class, and the name by which others find it."""
    given = row.get("actor_name")  # a program with an older version does not say it
    return str(row["name"]) if given is None else f"{row['name']} {given!r}"


def _trouble(answer: Mapping[str, Any]) -> str:
    return str(answer.get("message") or "no answer")


def _json(data: object) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False, default=str)
