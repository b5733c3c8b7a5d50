"""Control characters in text of users: refused in identifiers, escaped in logs and on terminals.

Identifiers (ids, owners, keys, tags, labels, pools, names of actors) are one line without control characters. Free
text (names, reasons, sentences; the name of a job is its command line) is accepted as it is, and escaped wherever it is
shown, so that it can neither begin another line nor control a terminal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ray_multicluster_scheduler.common.exception import ConfigurationError

if TYPE_CHECKING:
    from ray_multicluster_scheduler.common.model import TaskDescription

_CONTROL = "\\x00-\\x1f\\x7f-\\x9f\\u2028-\\u202e\\u2066-\\u2069"
"""Control characters, other line ends, and those that change the direction of text."""
_ANY = re.compile(f"[{_CONTROL}]")
_ALL_BUT_LINES = re.compile(f"(?![\\n\\t])[{_CONTROL}]")


def is_one_line(text: str) -> bool:
    """Whether it contains no control character."""
    return text.isprintable() or _ANY.search(text) is None


def escaped(text: str) -> str:
    """The text on one line: a newline becomes ``\\\\n``, an escape character ``\\x1b``."""
    return text if text.isprintable() else _ANY.sub(_escape, text)


def escaped_lines(text: str) -> str:
    """The same, but keeps newlines and tabs."""
    return text if text.isprintable() else _ALL_BUT_LINES.sub(_escape, text)


def as_json_escapes(document: str) -> str:
    """The same for a JSON text, which stays valid JSON."""
    return document if document.isprintable() else _ANY.sub(lambda match: f"\\u{ord(match[0]):04x}", document)


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")


def check_identifiers(task: TaskDescription) -> None:
    """Check all identifiers of an item. Raises ConfigurationError."""
    for name, value in _identifiers(task):
        if value is not None and not is_one_line(value):
            check_identifier(name, value, escaped(task.id))


def check_identifier(name: str, value: str, task_id: str | None = None) -> None:
    """Check one identifier. Raises ConfigurationError."""
    if not is_one_line(value):
        raise ConfigurationError(
            f"{name} is {escaped(value)[:100]!r}, with control characters in it.",
            task_id=task_id,
            next_step=f"give {name} as text on one line, without control characters",
        )


def _identifiers(task: TaskDescription) -> Iterable[tuple[str, str | None]]:
    yield "id", task.id
    yield "owner", task.owner
    yield "idempotency_key", task.idempotency_key
    for name in ("tags", "require_tags", "allow_clusters", "deny_clusters", "after"):
        yield from ((name, one) for one in getattr(task, name) or ())
    yield "preferred_cluster", task.preferred_cluster
    yield "pool", task.pool
    yield from (("labels", one) for pair in task.labels.items() for one in pair)
    if task.actor is not None:
        yield "The name of the actor", task.actor.public_name
        yield "ray_name", task.actor.ray_name
