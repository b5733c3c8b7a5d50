"""SQL lives in ``.sql`` files: each statement begins with a line ``-- name: something``."""

from __future__ import annotations

import re
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)
_HERE = files("ray_multicluster_scheduler.control_plane.store")


def statements(file: str) -> dict[str, str]:
    """All statements of ``sql/<file>.sql``, by their names."""
    text = (_HERE / "sql" / f"{file}.sql").read_text(encoding="utf-8")
    parts = _NAME.split(text)[1:]
    return {name: statement.strip() for name, statement in zip(parts[::2], parts[1::2], strict=True)}


def migrations() -> list[tuple[int, str, str]]:
    """Number, name and text of each, in order; numbers begin with 1 and have no gaps."""
    found = []
    for path in sorted((_HERE / "migrations").iterdir(), key=lambda one: one.name):
        if path.name.endswith(".sql"):
            number, _, name = path.name.removesuffix(".sql").partition("_")
            found.append((int(number), name, path.read_text(encoding="utf-8")))
    return found
