"""check_words(), check_word(): what an item is found by is one line, without control characters.

Ids, owners, keys, tags and names of actors have none of it. A name may: that of a job is its command line. What is free
text (names, reasons, sentences) is taken as it is, and spelt out wherever it is logged or shown to people
(:mod:`line_text`).
"""

from __future__ import annotations

from collections.abc import Iterable

from ray_multicluster_scheduler.common.control_characters import escaped, is_one_line
from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model import TaskDescription


def check_words(task: TaskDescription) -> None:
    """What an item is found and counted by is one line. Raises ConfigurationError."""
    for name, value in _words(task):
        if value is not None and not is_one_line(value):
            check_word(name, value, escaped(task.id))


def check_word(name: str, value: str, task_id: str | None = None) -> None:
    """The same for one of these by itself. Raises ConfigurationError."""
    if not is_one_line(value):
        raise ConfigurationError(
            f"{name} is {escaped(value)[:100]!r}, with control characters in it.",
            task_id=task_id,
            next_step=f"give {name} as text on one line, without control characters",
        )


def _words(task: TaskDescription) -> Iterable[tuple[str, str | None]]:
    yield "id", task.id
    yield "owner", task.owner
    yield "idempotency_key", task.idempotency_key
    for name in ("tags", "require_tags", "allow_clusters", "deny_clusters", "after"):
        yield from ((name, one) for one in getattr(task, name) or ())
    yield "preferred_cluster", task.preferred_cluster
    if task.actor is not None:
        yield "The name of the actor", task.actor.public_name
        yield "ray_name", task.actor.ray_name
