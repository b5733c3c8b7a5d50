"""Encodes rows of the scheduler machine and results of attempts as records of the store, and decodes them.

Documents are JSON with a format version, ``v``. Readers ignore unknown keys.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from operator import attrgetter
from typing import Any

from ray_multicluster_scheduler.common.blob_names import digest_of, package_digests_in
from ray_multicluster_scheduler.common.model import (
    FailureClass,
    Rejection,
    SchedulingDecision,
    TaskDescription,
    TaskState,
)
from ray_multicluster_scheduler.common.model.decision import CandidateReport
from ray_multicluster_scheduler.common.model.item_fields import fields_of
from ray_multicluster_scheduler.common.model.task_description import POOL_FIELDS
from ray_multicluster_scheduler.common.redaction import data_has_secrets, text_has_secrets
from ray_multicluster_scheduler.control_plane.config.owner_limits import stored_owner_limits
from ray_multicluster_scheduler.control_plane.store.records import (
    FleetState,
    ItemStatus,
    NewItem,
    Outcome,
    Step,
    StoredDecision,
    StoredItem,
)
from ray_multicluster_scheduler.control_plane.store.secret_encryption import SecretCipher, mask_encrypted
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterProblem
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Complete, Transition
from ray_multicluster_scheduler.scheduler.lifecycle.record import Ending, FreedRoom
from ray_multicluster_scheduler.scheduler.lifecycle.rows import ClusterRow, ItemRow, OwnerRow, PoolRow
from ray_multicluster_scheduler.scheduler.pools.pool import Pool
from ray_multicluster_scheduler.scheduler.queue.owner_account import Holding

_VERSION = 1
_COLUMNS = frozenset(
    {"task", "number", "history", "priority", "attempt", "cluster", "fence", "finished_at", "decision"}
)
"""Fields of a row that are columns of the store; all others go into ``rest``."""
COMPLETION = "completion"
"""The key of an item's Complete instruction in ``rest``; it is not a field of the row."""
_TASK = tuple(one.name for one in fields(TaskDescription))
_NO_DEFAULT = object()
_values_of_task = attrgetter(*_TASK)
_DEFAULTS = tuple(_NO_DEFAULT if one.required else one.default for one in fields_of(TaskDescription).values())
"""Default values, which are not written."""
_POOL_KEYS = tuple(f'"{name}":'.encode() for name in POOL_FIELDS)
_REST = tuple(one.name for one in fields(ItemRow) if one.name not in _COLUMNS)
_values_of_rest = attrgetter(*_REST)
_REST_SET = frozenset(_REST)
_COMPLETE = tuple(one.name for one in fields(Complete))
_values_of_completion = attrgetter(*_COMPLETE)
_MAX_CACHED = 2_000
_json = json.JSONEncoder(separators=(",", ":")).encode
_PARTS = ("job", "actor", "gang")
_RESULT = tuple(one.name for one in fields(CallResult) if one.name not in ("payload", "digest"))
_VALUE = "value"
"""The key that marks an outcome with a value; the digest is removed when the value expires."""


def encode_description(task: TaskDescription, objects: Sequence[str] = (), cipher: SecretCipher | None = None) -> bytes:
    """An item as accepted, with the names of its attached values, and its secrets encrypted. Raises TypeError and
    ValueError for what is not plain data, StoreError for secrets that cannot be encrypted."""
    values = zip(_TASK, _values_of_task(task), _DEFAULTS, strict=True)
    document: dict[str, Any] = {
        name: value for name, value, default in values if value is not default and value != default
    }
    for name in _PARTS:
        if name in document:
            document[name] = asdict(document[name])
    if (task.runtime_env or task.job is not None) and cipher is not None and _encrypt(document, cipher):
        return _text({"v": _VERSION, "task": document, "objects": list(objects), "sealed": True})
    return _text({"v": _VERSION, "task": document, "objects": list(objects)})


def _encrypt(document: dict[str, Any], cipher: SecretCipher) -> bool:
    """Returns whether anything was encrypted."""
    parts = {name: document[name] for name in ("runtime_env", "job") if name in document}
    command = parts.get("job", {}).get("entrypoint", "")
    is_secret = text_has_secrets(command)
    if not is_secret and not data_has_secrets(parts):
        return False
    document.update(cipher.encrypt(parts))
    if is_secret:
        document["job"]["entrypoint"] = cipher.encrypt_text(command)
    return True


def new_item(task: TaskDescription, number: int, description: bytes, objects: Sequence[str] = ()) -> NewItem:
    """The record of an accepted item; ``description`` is made by :func:`encode_description`."""
    packages = package_digests_in(task.runtime_env) if task.runtime_env else ()
    return NewItem(
        id=task.id,
        number=number,
        kind=task.kind,
        name=printable(task.name),
        owner=task.owner,
        submitted_at=task.submitted_at,
        description=description,
        key=task.idempotency_key,
        repeats=task.repeats,
        blobs=tuple(dict.fromkeys(one for one in (*task.payload_digests, *objects, *packages) if one is not None)),
    )


def encode_status(row: ItemRow, completion: Complete | None = None) -> ItemStatus:
    """The mutable part of an item, and how it ended if it has."""
    rest = {name: value for name, value in zip(_REST, _values_of_rest(row), strict=True) if value}
    for name in ("ending", "room"):
        if name in rest:
            rest[name] = asdict(rest[name])
    for name in ("queued_at", "started_at", "retry_at", "saved_at", "preempted_at"):  # may be 0
        if getattr(row, name) is not None:
            rest[name] = getattr(row, name)
    if completion is not None:
        rest[COMPLETION] = dict(zip(_COMPLETE, _values_of_completion(completion), strict=True))
    is_open = not row.state.terminal or bool(row.given_up)
    return ItemStatus(
        row.task.id,
        row.state,
        row.attempt,
        row.cluster,
        row.fence,
        row.priority,
        row.finished_at,
        is_open,
        _text({"v": _VERSION, **rest}),
    )


def started_at(status: ItemStatus) -> float | None:
    """When the last attempt was seen to start; None if it was not."""
    at: float | None = json.loads(status.rest).get("started_at")
    return at


def encode_step(transition: Transition) -> Step:
    step = Step(*transition)
    return step if step.sentence.isascii() else step._replace(sentence=printable(step.sentence))


class DecisionEncoder:
    """Encodes decisions. Similar items share candidate rows, so the texts of rows are cached."""

    def __init__(self) -> None:
        self._texts: dict[int, tuple[CandidateReport, str]] = {}

    def encode(self, task_id: str, attempt: int, decision: SchedulingDecision) -> StoredDecision:
        """Candidates are encoded as lists without field names, because a decision is written for every attempt."""
        document = {"v": _VERSION, "code": decision.code, "sentence": decision.sentence}
        if decision.unblocked_by is not None:
            document["unblocked_by"] = decision.unblocked_by
        rows = ",".join([self._row(row) for row in decision.candidates])
        text = f'{_json(document)[:-1]},"rows":[{rows}]}}'
        return StoredDecision(task_id, attempt, decision.at, decision.cluster, text.encode())

    def _row(self, row: CandidateReport) -> str:
        cached = self._texts.get(id(row))
        if cached is not None:
            return cached[1]
        text = _json(
            [
                row.cluster,
                [[one.code, one.sentence, one.permanent] for one in row.rejections],
                row.ranks,
                row.scores,
                row.raw_scores,
                row.total,
                row.node_id,
                row.undeclared,
            ]
        )
        if len(self._texts) >= _MAX_CACHED:
            self._texts.clear()
        self._texts[id(row)] = row, text  # keeps the row alive, so that its id stays unique
        return text


def decode_task(stored: StoredItem, cipher: SecretCipher | None = None) -> tuple[TaskDescription, tuple[str, ...]]:
    """The item as it was accepted, and the names of the values attached to it. Without a ``cipher`` its secrets are
    masked."""
    return decode_description(stored.new.description, cipher)


def decode_description(
    description: bytes, cipher: SecretCipher | None = None
) -> tuple[TaskDescription, tuple[str, ...]]:
    """As :func:`decode_task`, of what :func:`encode_description` returned."""
    document = json.loads(description)
    if document.get("sealed"):
        document["task"] = mask_encrypted(document["task"]) if cipher is None else cipher.decrypt(document["task"])
    known = {name: value for name, value in document["task"].items() if name in _TASK}
    return TaskDescription.from_dict(known), tuple(document["objects"])


def pool_fields_of(stored: StoredItem) -> dict[str, Any]:
    """The same as ``pool_fields`` of its description, with the pool that it got; fast for an item with none of them."""
    description, rest = stored.new.description, stored.status.rest
    task = json.loads(description)["task"] if any(key in description for key in _POOL_KEYS) else {}
    pool = json.loads(rest).get("pool") if b'"pool"' in rest else None
    return {**{name: task[name] for name in POOL_FIELDS if name in task}, **({} if pool is None else {"pool": pool})}


def decode_row(
    stored: StoredItem, steps: Iterable[Step], decision: StoredDecision | None, cipher: SecretCipher | None = None
) -> ItemRow:
    """The row that was written; its secrets are masked without a ``cipher``."""
    status = stored.status
    rest = {name: value for name, value in json.loads(status.rest).items() if name in _REST_SET}
    for name in ("earlier_fences", "after"):
        if name in rest:
            rest[name] = tuple(rest[name])
    if "given_up" in rest:
        rest["given_up"] = tuple((attempt, cluster) for attempt, cluster in rest["given_up"])
    if "failures" in rest:
        rest["failures"] = {FailureClass(kind): number for kind, number in rest["failures"].items()}
    if "ending" in rest:
        rest["ending"] = Ending(**rest["ending"])
    if "room" in rest:
        rest["room"] = FreedRoom(**{**rest["room"], "leave": tuple(rest["room"]["leave"])})
    if "holding" in rest:
        rest["holding"] = Holding(*rest["holding"])
    return ItemRow(
        task=decode_task(stored, cipher)[0],
        number=stored.new.number,
        history=tuple(Transition(*step) for step in steps),
        priority=status.priority,
        attempt=status.attempt,
        cluster=status.cluster,
        fence=status.fence,
        finished_at=status.finished_at,
        decision=None if decision is None else decode_decision(decision),
        **rest,
    )


def decode_decision(stored: StoredDecision) -> SchedulingDecision:
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


def encode_outcome(result: CallResult) -> Outcome:
    """The outcome of an attempt, with the digest of its value instead of the value."""
    document = {name: value for name in _RESULT if (value := getattr(result, name)) not in (None, "")}
    digest = None if result.payload is None else result.digest or digest_of(result.payload)
    if digest is not None:
        document[_VALUE] = True
    return Outcome(result.task_id, result.attempt, _text({"v": _VERSION, **document}), digest)


def decode_result(stored: Outcome, payload: bytes | None) -> CallResult:
    """The result that was encoded, with its value."""
    values: dict[str, Any] = {name: value for name, value in json.loads(stored.document).items() if name in _RESULT}
    if "failure" in values:
        values["failure"] = FailureClass(values["failure"])
    return CallResult(**values, payload=payload, digest=stored.digest)


def had_value(stored: Outcome) -> bool:
    """Whether the attempt returned a value, expired or not."""
    return stored.digest is not None or _VALUE in json.loads(stored.document)


def decode_completion(stored: StoredItem) -> Complete | None:
    """The Complete instruction of an item; None while it has not ended."""
    if not stored.status.state.terminal:
        return None
    document = json.loads(stored.status.rest).get(COMPLETION)
    if document is None:  # written by a version that did not store it
        return Complete(stored.new.id, stored.status.state, stored.status.attempt, stored.status.cluster)
    return Complete(**{**document, "state": TaskState(document["state"])})


def encode_fleet(
    clusters: Iterable[ClusterRow],
    owners: Iterable[OwnerRow],
    pools: Iterable[PoolRow],
    absent: Mapping[str, bytes],
) -> FleetState:
    """Operators' decisions about clusters, owners and pools, including those about ``absent`` clusters (not configured
    now)."""
    documents = {one.name: _cluster(one) for one in clusters}
    present = {name: _text({"v": _VERSION, **document}) for name, document in documents.items() if document}
    return FleetState(
        {**{name: text for name, text in absent.items() if name not in documents}, **present},
        {one.name: _text({"v": _VERSION, **_owner(one)}) for one in owners},
        {one.name: _text({"v": _VERSION, "pool": one.pool and one.pool.to_dict()}) for one in pools},
    )


def decode_fleet(stored: FleetState) -> tuple[tuple[ClusterRow, ...], tuple[OwnerRow, ...], tuple[PoolRow, ...]]:
    clusters = []
    for name, text in stored.clusters.items():
        document = json.loads(text)
        dead = ClusterProblem(**document["dead"]) if "dead" in document else None
        cordoned, reason = bool(document.get("cordoned")), document.get("cordon_reason", "")
        clusters.append(ClusterRow(name, cordoned, document.get("paused"), dead, reason))
    owners = []
    for name, text in stored.owners.items():
        document = json.loads(text)
        limits = document.get("limits")
        owners.append(OwnerRow(name, document["paused"], None if limits is None else stored_owner_limits(limits)))
    pools = []
    for name, text in stored.pools.items():
        pool = json.loads(text)["pool"]
        pools.append(PoolRow(name, None if pool is None else Pool.from_dict(pool)))
    return tuple(clusters), tuple(owners), tuple(pools)


def printable(text: str) -> str:
    """The text with lone surrogates escaped, as in names of files that are not UTF-8: the store holds only UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


def _cluster(row: ClusterRow) -> dict[str, Any]:
    document: dict[str, Any] = {"cordoned": True} if row.cordoned else {}
    if row.cordon_reason:
        document["cordon_reason"] = row.cordon_reason
    if row.paused is not None:
        document["paused"] = row.paused
    if row.dead is not None:
        document["dead"] = asdict(row.dead)
    return document


def _owner(row: OwnerRow) -> dict[str, Any]:
    return {"paused": row.paused, **({} if row.limits is None else {"limits": row.limits.model_dump()})}


def _text(document: Mapping[str, Any]) -> bytes:
    return _json(document).encode()
