"""Request parsing for all routes: bodies, typed fields, pagination, and the parts of the app's state."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fastapi import Request

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.control_plane.admin_api.access.access import Access
from ray_multicluster_scheduler.control_plane.admin_api.events.long_poll import MailboxRegistry
from ray_multicluster_scheduler.control_plane.admin_api.http.problems import NoSuchCluster, TooLarge
from ray_multicluster_scheduler.control_plane.runtime import wire
from ray_multicluster_scheduler.control_plane.runtime.service.program_leases import ProgramLeases
from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import ServiceRuntime

MAX_BYTES = 64 * 2**20
MAX_ROWS = 1000
_LAST_NUMBER = 2**63 - 1
_SURROGATES = (b"\\ud", b"\\uD", b"\xed")
"""Byte sequences that may begin a lone surrogate, which cannot be written as UTF-8; valid characters may match."""
_FILE_NAMES = frozenset({"home_paths"})
"""Fields with paths, which need not be valid text."""


def runtime_of(request: Request) -> ServiceRuntime:
    runtime: ServiceRuntime = request.app.state.runtime
    return runtime


def mailboxes_of(request: Request) -> MailboxRegistry:
    mailboxes: MailboxRegistry = request.app.state.mailboxes
    return mailboxes


def leases_of(request: Request) -> ProgramLeases:
    leases: ProgramLeases = request.app.state.leases
    return leases


def access_of(request: Request) -> Access:
    access: Access = request.app.state.access
    return access


def check_cluster(request: Request, name: str) -> None:
    """Raises NoSuchCluster if the name in a path is unknown."""
    try:
        runtime_of(request).check_cluster(name)
    except ConfigurationError as error:
        raise NoSuchCluster(error.message, cluster=error.cluster, next_step=error.next_step) from error


async def bytes_of(request: Request, most: int = MAX_BYTES) -> bytes:
    """The body. Raises TooLarge as soon as it is known to be too large, by its Content-Length if there is one."""
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length[:30]) > most:
        raise _too_large(most)
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise _too_large(most)
        parts.append(part)
    return b"".join(parts)


def _too_large(most: int) -> TooLarge:
    return TooLarge(
        f"The body is larger than {most:,} bytes.",
        next_step="send smaller requests; upload large payloads one by one to /api/v1/blobs",
    )


async def json_of(request: Request, each: str = "") -> dict[str, Any]:
    """The body as a JSON object. Raises ConfigurationError for anything else, and for text that is not valid UTF-8.
    Invalid entries of the list ``each`` are replaced by their errors instead."""
    body = await bytes_of(request)
    try:
        data = json.loads(body.decode("utf-8", "surrogatepass") or "{}")
    except RecursionError as error:
        raise ConfigurationError("The body is nested too deeply.", next_step="send fewer levels") from error
    except ValueError as error:
        raise ConfigurationError(f"The body is not JSON: {error}.", next_step="send a JSON object") from error
    if not isinstance(data, dict):
        raise ConfigurationError(f"The body is a {type(data).__name__}.", next_step="send a JSON object")
    if any(one in body for one in _SURROGATES):
        entries = data.get(each)
        apart = isinstance(entries, list)
        problem = _text_error({name: value for name, value in data.items() if name != each} if apart else data)
        if problem is not None:
            raise problem
        if isinstance(entries, list):
            data[each] = [_text_error(entry) or entry for entry in entries]
    return data


def _text_error(value: object) -> ConfigurationError | None:
    where = find_lone_surrogate(value)
    if where is None:
        return None
    return ConfigurationError(
        f"{where} has half of a character (a lone surrogate) in it, which cannot be written as UTF-8.",
        next_step="send complete characters",
    )


def check_fields(data: Mapping[str, Any], known: Collection[str], what: str) -> None:
    """Raises ConfigurationError for a field that is not known."""
    for key in data:
        if key not in known:
            raise ConfigurationError(f"{what} has no field {key[:100]!r}.", next_step=f"use {', '.join(known)}")


def blobs_of(body: dict[str, Any]) -> dict[str, bytes]:
    """The payloads in the body, by digest. Raises ConfigurationError."""
    try:
        return wire.bytes_from_wire(body.get("blobs") or {})
    except (ValueError, AttributeError, TypeError) as error:
        raise ConfigurationError(f"blobs cannot be read: {error}.", next_step="send base64 by digest") from error


def texts(body: dict[str, Any], key: str, most: int | None = None) -> list[str]:
    """A list of texts, at most ``most``. Raises ConfigurationError."""
    value = body.get(key, [])
    if most is not None and isinstance(value, list) and len(value) > most:
        raise ConfigurationError(f"{key} has {len(value):,} entries.", next_step=f"give at most {most:,} at once")
    if not isinstance(value, list) or not all(is_text(one) for one in value):
        raise ConfigurationError(f"{key} is {str(value)[:100]!r}.", next_step=f"give {key} as a list of texts")
    return value


def seconds(body: dict[str, Any], key: str, default: float, most: float) -> float:
    """A duration in seconds, cut to ``most``. Raises ConfigurationError."""
    value = body.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise ConfigurationError(f"{key} is {str(value)[:100]!r}.", next_step="give seconds, 0 or more")
    return float(min(value, most))


def number_of(cursor: str | None) -> int | None:
    """The number behind a pagination cursor. Raises ConfigurationError."""
    if cursor is None:
        return None
    if not cursor.isdecimal() or not cursor.isascii():
        raise ConfigurationError(f"after is {cursor[:100]!r}.", next_step="give the cursor of the last page, or none")
    return min(int(cursor[:30]), _LAST_NUMBER)


def cursor_of(number: int | None) -> str | None:
    return None if number is None else str(number)


def rows_at_most(limit: int) -> int:
    """The page size. Raises ConfigurationError if it is less than one."""
    if limit < 1:
        raise ConfigurationError(f"limit is {str(limit)[:30]}.", next_step=f"give 1 to {MAX_ROWS:,}, or leave it out")
    return min(limit, MAX_ROWS)


def page_of(
    rows: Sequence[dict[str, Any]], after: str | None, limit: int | None
) -> tuple[Sequence[dict[str, Any]], str | None]:
    """The page after the row with the id ``after``, and the cursor of the next page. Raises ConfigurationError."""
    begin = 0
    if after is not None:
        begin = next((at for at, row in enumerate(rows, start=1) if row["id"] == after), 0)
        if not begin:
            raise ConfigurationError(
                f"The row {after[:100]!r} does not exist any more.", next_step="begin with the first page"
            )
    if limit is None:
        return rows[begin:], None
    page = rows[begin : begin + rows_at_most(limit)]
    return page, page[-1]["id"] if page and begin + len(page) < len(rows) else None


def is_text(value: object) -> bool:
    """Text that can be encoded as UTF-8."""
    if not isinstance(value, str):
        return False
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def find_lone_surrogate(document: object) -> str | None:
    """The place of a lone surrogate in the body, at any depth; None if there is none."""
    left: list[tuple[str, object]] = [("The body", document)]
    while left:
        where, value = left.pop()
        if isinstance(value, str):
            if not is_text(value):
                return where
        elif isinstance(value, dict):
            for key, below in value.items():
                if not is_text(key):
                    return "A name in " + ("the body" if where == "The body" else where)
                if key not in _FILE_NAMES:
                    left.append((key, below))
        elif isinstance(value, list):
            left.extend((where, below) for below in value)
    return None
