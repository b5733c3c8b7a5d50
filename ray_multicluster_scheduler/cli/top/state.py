"""The state of the screen of `rmcs top`, and how keys change it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

PANES = ("clusters", "nodes", "queue", "running")
SORTS = {"c": "cluster", "s": "state", "a": "age"}
QUEUE_SORT = "cluster"
"""Waiting items have no cluster, so in this order they stay in the order of the queue."""
PAGE = 10
MAX_ROWS = 1000
AHEAD = 100
"""So many rows below the last visible one are fetched ahead of scrolling."""
_MAX_FILTER = 200
_KEYS = {
    "\t": "next", "\x1b[Z": "previous", "\x1b[C": "next", "\x1b[D": "previous", "\x1bOC": "next", "\x1bOD": "previous",
    "\x1b[A": "up", "\x1bOA": "up", "\x1b[B": "down", "\x1bOB": "down", "\x1b[5~": "page up", "\x1b[6~": "page down",
    "\x1b[H": "home", "\x1bOH": "home", "\x1b[1~": "home", "\x1b[F": "end", "\x1bOF": "end", "\x1b[4~": "end",
    "\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace", "\x15": "clear", "\x1b": "escape",
}  # fmt: skip
_KEY = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1bO.|.", re.DOTALL)
_STEPS = {"up": -1, "down": 1, "page up": -PAGE, "page down": PAGE, "home": -(10**9), "end": 10**9}


@dataclass(frozen=True)
class View:
    """``typing``: keys go into the filter. ``first`` is the top row."""

    pane: str = PANES[0]
    sort: str = "cluster"
    backwards: bool = False
    filter: str = ""
    typing: bool = False
    paused: bool = False
    first: int = 0
    over: bool = False


def parse_keys(text: str) -> list[str]:
    """Keys in the input of a terminal: a letter, or a name such as ``page up``. Unknown ones are left out."""
    found = (_KEYS.get(one, one) for one in _KEY.findall(text))
    return [one for one in found if one in _KEYS.values() or (len(one) == 1 and one.isprintable())]


def press(view: View, key: str) -> View:
    """The view after a key."""
    if view.typing:
        return _edit_filter(view, key)
    if key in SORTS:
        again = view.sort == SORTS[key]
        return replace(view, sort=SORTS[key], backwards=again and not view.backwards, first=0)
    if key in _STEPS:
        return replace(view, first=max(0, view.first + _STEPS[key]))
    match key:
        case "next" | "previous":
            step = 1 if key == "next" else -1
            return replace(view, pane=PANES[(PANES.index(view.pane) + step) % len(PANES)], first=0)
        case "/":
            return replace(view, typing=True)
        case "escape":
            return replace(view, filter="", first=0)
        case "p":
            return replace(view, paused=not view.paused)
        case "q":
            return replace(view, over=True)
        case _ if key in tuple("1234"):
            return replace(view, pane=PANES[int(key) - 1], first=0)
    return view


def _edit_filter(view: View, key: str) -> View:
    match key:
        case "enter":
            return replace(view, typing=False)
        case "escape":
            return replace(view, typing=False, filter="", first=0)
        case "backspace":
            return replace(view, filter=view.filter[:-1], first=0)
        case "clear":
            return replace(view, filter="", first=0)
        case _ if len(key) == 1:
            return replace(view, filter=(view.filter + key)[:_MAX_FILTER], first=0)
    return view


def rows_needed(view: View, room: int) -> int:
    """The number of rows of the queue that the view needs: all for a filter or another order than that of the queue;
    none for nodes and running items, which show only their number."""
    if view.pane == "clusters":
        return MAX_ROWS if view.filter else min(MAX_ROWS, room)
    if view.pane != "queue":
        return 0
    if view.filter or view.backwards or view.sort != QUEUE_SORT:
        return MAX_ROWS
    return min(MAX_ROWS, view.first + room)


def rows_wanted(view: View, room: int) -> int:
    """The number of rows of the queue to request."""
    needed = rows_needed(view, room)
    return min(MAX_ROWS, needed + AHEAD) if needed else 1


def clamp_scroll(view: View, rows: int, room: int) -> View:
    """The same view, scrolled so that no room is left empty below the last row."""
    return replace(view, first=max(0, min(view.first, rows - room)))


def visible_rows(view: View, data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of the pane, filtered and sorted; rows without a value come last."""
    wanted = view.filter.lower()
    rows = [row for row in data[view.pane] if wanted in "\n".join(map(str, _leaves(row))).lower()]
    having = [row for row in rows if _value(view.sort, row) is not None]
    having.sort(
        key=lambda row: (_value(view.sort, row), str(row.get("id") or row.get("name") or row.get("NodeID"))),
        reverse=view.backwards,
    )
    return having + [row for row in rows if _value(view.sort, row) is None]


def _value(sort: str, row: Mapping[str, Any]) -> Any:
    match sort:
        case "cluster":
            return row.get("Cluster") or row.get("cluster") or (row["name"] if "cordoned" in row else None)
        case "state":
            return row.get("state")
    return row.get("submitted_at")


def _leaves(value: Any) -> Sequence[Any]:
    if isinstance(value, Mapping):
        return [leaf for one in value.values() for leaf in _leaves(one)]
    if isinstance(value, (list, tuple)):
        return [leaf for one in value for leaf in _leaves(one)]
    return [] if value is None else [value]
