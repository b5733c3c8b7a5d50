"""Event: one thing that happened, in words that everybody understands."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any, Literal

from ray_multicluster_scheduler.control_plane.store.records import EventRecord, OperationRecord, Step, StoredDecision

Kind = Literal["transition", "decision", "cluster", "action", "telemetry", "reset"]
DURABLE: tuple[Kind, ...] = ("transition", "decision", "cluster", "action")
TELEMETRY: Kind = "telemetry"
KINDS: tuple[Kind, ...] = (*DURABLE, TELEMETRY)
CLUSTER, ACTION = "cluster", "action"
"""What notes of these say is an event of the same name."""


class Event:
    """``number`` counts without gaps over everything that is durable; telemetry has none."""

    def __init__(self, kind: Kind, said: Mapping[str, Any], number: int | None = None) -> None:
        self.kind, self.number = kind, number
        self.said: dict[str, Any] = (
            {"type": kind, **said} if number is None else {"number": number, "type": kind, **said}
        )

    @functools.cached_property
    def text(self) -> str:
        """As JSON; made once, however many want it."""
        return json.dumps(self.said, separators=(",", ":"))


def event_of(one: EventRecord) -> Event:
    """What the store tells, for everybody else."""
    said: dict[str, Any]
    about = {"kind": one.kind, "name": one.name, "owner": one.owner}
    match one.entry:
        case Step() as step:
            said = {
                "at": step.at,
                "id": step.item_id,
                **about,
                "step": step.number,
                "state": str(step.state),
                "attempt": step.attempt,
                "cluster": step.cluster,
                "code": step.code,
                "sentence": step.sentence,
            }
            return Event("transition", said, one.number)
        case StoredDecision() as decided:
            document = json.loads(decided.document)
            said = {
                "at": decided.at,
                "id": decided.item_id,
                **about,
                "attempt": decided.attempt,
                "cluster": decided.cluster,
                "code": document.get("code"),
                "sentence": document.get("sentence"),
                "candidates": [_candidate(row) for row in document.get("rows", ())],
            }
            return Event("decision", said, one.number)
        case OperationRecord() as note:
            said = {"at": note.at, **json.loads(note.document)}
            if note.what == CLUSTER:
                return Event("cluster", {**said, "cluster": note.subject}, one.number)
            return Event("action", {**said, "user": note.user, "subject": note.subject}, one.number)


def _candidate(row: list[Any]) -> dict[str, Any]:
    cluster, rejections, _, scores, _, total, *_ = row
    return {
        "cluster": cluster,
        "rejections": [{"code": code, "sentence": sentence} for code, sentence, *_ in rejections],
        "scores": scores,
        "total": total,
    }


def reset(number: int) -> Event:
    """What a reader is told that names a number which nobody has had yet."""
    sentence = "The number that was asked for is not one of this control plane. It goes on from here."
    return Event("reset", {"sentence": sentence}, number)


def missed(numbers: tuple[int, int]) -> dict[str, Any]:
    """What a reader is told that was too slow for those from one number to another."""
    return {
        "type": "missed",
        "from": numbers[0],
        "to": numbers[1],
        "sentence": "These came faster than they were taken. Ask again with since, or Last-Event-ID, to have them.",
    }
