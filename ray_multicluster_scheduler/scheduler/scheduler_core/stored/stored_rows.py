"""Rows of the machine as records of the store, and back.

Documents are JSON with the version of their form, ``v``. Whoever reads one ignores what it does not know.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, fields
from operator import attrgetter
from typing import Any

from ray_multicluster_scheduler.common.blob_names import package_digests_in
from ray_multicluster_scheduler.common.model import (
    FailureClass,
    Rejection,
    SchedulingDecision,
    TaskDescription,
)
from ray_multicluster_scheduler.common.model.decision import CandidateReport
from ray_multicluster_scheduler.common.redaction import data_has_secrets, text_has_secrets
from ray_multicluster_scheduler.control_plane.config.owner_limits import kept_owner_limits
from ray_multicluster_scheduler.control_plane.store.records import (
    FleetState,
    ItemStatus,
    NewItem,
    Step,
    StoredDecision,
    StoredItem,
)
from ray_multicluster_scheduler.control_plane.store.secret_encryption import SecretCipher, mask_encrypted
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterProblem
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Complete, Transition
from ray_multicluster_scheduler.scheduler.lifecycle.record import Ending
from ray_multicluster_scheduler.scheduler.lifecycle.rows import ClusterRow, ItemRow, OwnerRow
from ray_multicluster_scheduler.scheduler.queue.owner_account import Holding

_VERSION = 1
_COLUMNS = frozenset(
    {"task", "number", "history", "priority", "attempt", "cluster", "fence", "finished_at", "decision"}
)
"""What the store has a place for; all other fields of a row are its ``rest``."""
COMPLETION = "completion"
"""Where the brain's last word of an item is: beside its row, of which it is no part."""
_TASK = tuple(one.name for one in fields(TaskDescription))
_NOTHING = object()
_said_by = attrgetter(*_TASK)
_USUAL = tuple(_NOTHING if one.default is MISSING else one.default for one in fields(TaskDescription))
"""What need not be written: it is what a description has that says nothing of it."""
_REST = tuple(one.name for one in fields(ItemRow) if one.name not in _COLUMNS)
_rest_of = attrgetter(*_REST)
_REST_SET = frozenset(_REST)
_COMPLETE = tuple(one.name for one in fields(Complete))
_last_word = attrgetter(*_COMPLETE)
_MOST_TEXTS = 2_000
_json = json.JSONEncoder(separators=(",", ":")).encode
_PARTS = ("job", "actor", "gang")


def described(task: TaskDescription, objects: Sequence[str] = (), cipher: SecretCipher | None = None) -> bytes:
    """An item as it was accepted, with the names of the values that were attached to it, and its secrets sealed. Raises
    TypeError, ValueError for what is not plain data, StoreError for secrets that cannot be sealed."""
    said = zip(_TASK, _said_by(task), _USUAL, strict=True)
    document: dict[str, Any] = {name: value for name, value, usual in said if value is not usual and value != usual}
    for name in _PARTS:
        if name in document:
            document[name] = asdict(document[name])
    if (task.runtime_env or task.job is not None) and cipher is not None and _seal(document, cipher):
        return _text({"v": _VERSION, "task": document, "objects": list(objects), "sealed": True})
    return _text({"v": _VERSION, "task": document, "objects": list(objects)})


def _seal(document: dict[str, Any], cipher: SecretCipher) -> bool:
    """Returns whether there was anything to be sealed."""
    parts = {name: document[name] for name in ("runtime_env", "job") if name in document}
    command = parts.get("job", {}).get("entrypoint", "")
    hides = text_has_secrets(command)
    if not hides and not data_has_secrets(parts):
        return False
    document.update(cipher.encrypt(parts))
    if hides:
        document["job"]["entrypoint"] = cipher.encrypt_text(command)
    return True


def new_item(task: TaskDescription, number: int, description: bytes, objects: Sequence[str] = ()) -> NewItem:
    """Its record; ``description`` is what :func:`described` says."""
    packages = package_digests_in(task.runtime_env) if task.runtime_env else ()
    return NewItem(
        id=task.id,
        number=number,
        kind=task.kind,
        name=readable(task.name),
        owner=task.owner,
        submitted_at=task.submitted_at,
        description=description,
        key=task.idempotency_key,
        repeats=task.repeats,
        blobs=tuple(dict.fromkeys(one for one in (*task.payload_digests, *objects, *packages) if one is not None)),
    )


def item_now(row: ItemRow, completion: Complete | None = None) -> ItemStatus:
    """What may change of it, and how it ended if it is over."""
    rest = {name: value for name, value in zip(_REST, _rest_of(row), strict=True) if value}
    if row.ending is not None:
        rest["ending"] = asdict(row.ending)
    for name in ("queued_at", "started_at", "retry_at"):  # 0 is a time
        if getattr(row, name) is not None:
            rest[name] = getattr(row, name)
    if completion is not None:
        rest[COMPLETION] = dict(zip(_COMPLETE, _last_word(completion), strict=True))
    owed = not row.state.terminal or bool(row.given_up)
    return ItemStatus(
        row.task.id,
        row.state,
        row.attempt,
        row.cluster,
        row.fence,
        row.priority,
        row.finished_at,
        owed,
        _text({"v": _VERSION, **rest}),
    )


def when_started(now: ItemStatus) -> float | None:
    """When its last attempt was seen to start; None if it was not."""
    known: float | None = json.loads(now.rest).get("started_at")
    return known


def step_of(transition: Transition) -> Step:
    step = Step(*transition)
    return step if step.sentence.isascii() else step._replace(sentence=readable(step.sentence))


class DecisionWriter:
    """Decisions as records. Rows are told again and again to items that are alike, so their texts are kept a while."""

    def __init__(self) -> None:
        self._texts: dict[int, tuple[CandidateReport, str]] = {}

    def decided(self, task_id: str, attempt: int, decision: SchedulingDecision) -> StoredDecision:
        """Its table row by row, without the names of the fields: it is written for every attempt."""
        document = {"v": _VERSION, "code": decision.code, "sentence": decision.sentence}
        if decision.unblocked_by is not None:
            document["unblocked_by"] = decision.unblocked_by
        rows = ",".join([self._row(row) for row in decision.candidates])
        text = f'{_json(document)[:-1]},"rows":[{rows}]}}'
        return StoredDecision(task_id, attempt, decision.at, decision.cluster, text.encode())

    def _row(self, row: CandidateReport) -> str:
        known = self._texts.get(id(row))
        if known is not None:
            return known[1]
        text = _json(
            [
                row.cluster,
                [[one.code, one.sentence, one.permanent] for one in row.rejections],
                row.ranks,
                row.scores,
                row.raw_scores,
                row.total,
                row.node_id,
            ]
        )
        if len(self._texts) >= _MOST_TEXTS:
            self._texts.clear()
        self._texts[id(row)] = row, text  # as long as it is here, nobody else has its id
        return text


def task_of(stored: StoredItem, cipher: SecretCipher | None = None) -> tuple[TaskDescription, tuple[str, ...]]:
    """The item as it was accepted, and the names of the values attached to it. Without a ``cipher`` its secrets are
    masked."""
    document = json.loads(stored.new.description)
    if document.get("sealed"):
        document["task"] = mask_encrypted(document["task"]) if cipher is None else cipher.decrypt(document["task"])
    known = {name: value for name, value in document["task"].items() if name in _TASK}
    return TaskDescription.from_dict(known), tuple(document["objects"])


def item_row(
    stored: StoredItem, steps: Iterable[Step], decision: StoredDecision | None, cipher: SecretCipher | None = None
) -> ItemRow:
    """The row that was written; its secrets are masked without a ``cipher``."""
    now = stored.status
    rest = {name: value for name, value in json.loads(now.rest).items() if name in _REST_SET}
    for name in ("earlier_fences", "after"):
        if name in rest:
            rest[name] = tuple(rest[name])
    if "given_up" in rest:
        rest["given_up"] = tuple((attempt, cluster) for attempt, cluster in rest["given_up"])
    if "failures" in rest:
        rest["failures"] = {FailureClass(kind): number for kind, number in rest["failures"].items()}
    if "ending" in rest:
        rest["ending"] = Ending(**rest["ending"])
    if "holding" in rest:
        rest["holding"] = Holding(*rest["holding"])
    return ItemRow(
        task=task_of(stored, cipher)[0],
        number=stored.new.number,
        history=tuple(Transition(*step) for step in steps),
        priority=now.priority,
        attempt=now.attempt,
        cluster=now.cluster,
        fence=now.fence,
        finished_at=now.finished_at,
        decision=None if decision is None else decision_of(decision),
        **rest,
    )


def decision_of(stored: StoredDecision) -> SchedulingDecision:
    document = json.loads(stored.document)
    rows = [
        CandidateReport(cluster, tuple(Rejection(*one) for one in rejections), *rest)
        for cluster, rejections, *rest in document["rows"]
    ]
    return SchedulingDecision(
        stored.item_id,
        stored.at,
        stored.cluster,
        document["code"],
        document["sentence"],
        tuple(rows),
        document.get("unblocked_by"),
    )


def fleet_now(clusters: Iterable[ClusterRow], owners: Iterable[OwnerRow], absent: Mapping[str, bytes]) -> FleetState:
    """What people said of clusters and owners. Of ``absent`` clusters, which are not configured just now, what was said
    before still holds."""
    said = {one.name: _cluster(one) for one in clusters}
    known = {name: _text({"v": _VERSION, **document}) for name, document in said.items() if document}
    return FleetState(
        {**{name: text for name, text in absent.items() if name not in said}, **known},
        {one.name: _text({"v": _VERSION, **_owner(one)}) for one in owners},
    )


def fleet_rows(stored: FleetState) -> tuple[tuple[ClusterRow, ...], tuple[OwnerRow, ...]]:
    clusters = []
    for name, text in stored.clusters.items():
        said = json.loads(text)
        dead = ClusterProblem(**said["dead"]) if "dead" in said else None
        clusters.append(ClusterRow(name, bool(said.get("cordoned")), said.get("paused"), dead))
    return tuple(clusters), tuple(_owner_row(name, json.loads(text)) for name, text in stored.owners.items())


def readable(text: str) -> str:
    """The same, if it can be written; half a character, as in names of files that are no text, is spelt out."""
    return text.encode("utf-8", "backslashreplace").decode()


def _cluster(row: ClusterRow) -> dict[str, Any]:
    said: dict[str, Any] = {"cordoned": True} if row.cordoned else {}
    if row.paused is not None:
        said["paused"] = row.paused
    if row.dead is not None:
        said["dead"] = asdict(row.dead)
    return said


def _owner(row: OwnerRow) -> dict[str, Any]:
    said: dict[str, Any] = {"paused": row.paused}
    return said if row.limits is None else {**said, "limits": row.limits.model_dump()}


def _owner_row(name: str, said: Mapping[str, Any]) -> OwnerRow:
    limits = said.get("limits")
    if limits is None:
        return OwnerRow(name, said["paused"])
    return OwnerRow(name, said["paused"], kept_owner_limits(limits))


def _text(document: Mapping[str, Any]) -> bytes:
    return _json(document).encode()
