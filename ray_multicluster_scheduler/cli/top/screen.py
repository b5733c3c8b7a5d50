"""TopScreen: draws `rmcs top`, four lines around one table, in the size of the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.text import Text

from ray_multicluster_scheduler.cli.commands.pool import pools_table
from ray_multicluster_scheduler.cli.layout.cluster_tables import GIB, load_table
from ray_multicluster_scheduler.cli.layout.item_tables import items_table, waiting_table
from ray_multicluster_scheduler.cli.layout.table import FittingTable
from ray_multicluster_scheduler.cli.layout.times import ago, duration
from ray_multicluster_scheduler.cli.top.state import MAX_ROWS, PANES, QUEUE_SORT, View, clamp_scroll, visible_rows

FRAME_LINES = 4
"""Lines around the rows: two above, the titles of the table, and the keys."""
_NODES = ("NODE", "CLUSTER", "CPU", "MEMORY GiB", "GPU", "OTHER")
_HINTS = (
    ("q", "quit"),
    ("tab", "next"),
    ("/", "filter"),
    ("p", "pause"),
    ("c", "cluster"),
    ("s", "state"),
    ("a", "age"),
    ("↑↓", "scroll"),
    ("1-4", "pane"),
)
"""In a narrow terminal, only the first ones are shown."""
_TYPING = (("enter", "keep"), ("esc", "no filter"))


class TopScreen:
    """Renders one view of the data. ``problem``: why the service does not answer, and since when; None: it does."""

    def __init__(
        self, view: View, data: Mapping[str, Any], now: float, height: int, problem: tuple[str, float] | None = None
    ) -> None:
        self._data, self._now, self._height, self._problem = data, now, height, problem
        self._shown_at: float = data["at"] if view.paused else now  # a pause also stops the ages
        self.rows = visible_rows(view, data)
        self.room = max(0, height - FRAME_LINES)
        self._more = bool(data["more"].get(view.pane))
        self._complete = not self._more or data["asked"][view.pane] >= MAX_ROWS
        self.view = clamp_scroll(view, self._scrollable(view), self.room)
        self._first = clamp_scroll(view, len(self.rows), self.room).first

    def _scrollable(self, view: View) -> int:
        """The number of rows that can be scrolled to, also those that are being fetched."""
        if self._complete or view.filter or self._problem is not None:
            return len(self.rows)
        count = self._count(view.pane)
        return max(len(self.rows), min(MAX_ROWS, int(count)) if count.isdecimal() else MAX_ROWS)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        shown = self.rows[self._first : self._first + self.room]
        parts = [self._head(), self._tabs(width, styled=console.color_system is not None)]
        table = self._table(shown) if shown else Text(self._empty_reason(), no_wrap=True, overflow="ellipsis")
        lines = [line for one in parts for line in console.render_lines(one, options, pad=False)[:1]]
        lines += console.render_lines(table, options, pad=False)[: self.room + 1]
        if self.view.pane == "clusters":
            lines += self._pools_below(console, options, (self._height - 1 - len(lines)) // 2)
            lines += self._queue_below(console, options, self._height - 1 - len(lines))
        lines = lines[: max(0, self._height - 1)]
        lines += [[] for _ in range(self._height - 1 - len(lines))]
        lines += console.render_lines(self._footer(width), options, pad=False)[:1]
        for number, line in enumerate(lines):
            yield from Segment.adjust_line_length(line, width, pad=False)
            if number < len(lines) - 1:
                yield Segment.line()

    def _pools_below(self, console: Console, options: ConsoleOptions, room: int) -> list[list[Segment]]:
        """An empty line and the use of the pools, as many as there is room for; nothing if there are no pools."""
        pools = self._data.get("pools")
        if not pools or room < 3:
            return []
        return [[], *console.render_lines(pools_table(pools[:room]), options, pad=False)][:room]

    def _queue_below(self, console: Console, options: ConsoleOptions, room: int) -> list[list[Segment]]:
        """An empty line, the number of waiting items, and the next ones, as many as there is room for."""
        rows = visible_rows(replace(self.view, pane="queue", sort=QUEUE_SORT), self._data)
        title = f" Queue {self._count('queue')} " if self._count("queue") != "0" else " Nothing waits."
        parts: list[Any] = ["", Text(title)]
        if rows and room > len(parts) + 1:
            parts.append(waiting_table(rows[: room - len(parts) - 1], self._shown_at))
        lines = [line for one in parts for line in console.render_lines(one, options, pad=False)]
        return lines[: max(0, room)]

    def _head(self) -> Text:
        head = Text(no_wrap=True, overflow="ellipsis")
        head.append("PAUSED  " if self.view.paused else "", style="bold yellow")
        if self._problem is not None:
            why, since = self._problem
            lost = f"No answer for {duration(self._now - since)}; retrying. {why}"
            return head.append(lost, style="bold red")
        return head.append(f"rmcs {self._data['version']} at {self._data['address']}", style="bold")

    def _tabs(self, width: int, *, styled: bool) -> Text:
        """The current pane is reversed; in brackets where there are no styles."""
        view, rest = self.view, self._order()
        names = {pane: f"{pane.capitalize()} {self._count(pane)}" for pane in PANES}
        this = Text(f" {names[view.pane]} " if styled else f"[{names[view.pane]}]", style="reverse bold")
        tabs = Text(no_wrap=True, overflow="ellipsis")
        for pane, name in names.items():
            tabs.append_text(this if pane == view.pane else Text(f" {name} "))
        if tabs.cell_len + (rest.cell_len if view.filter or view.typing else 0) > width:
            tabs = Text(no_wrap=True, overflow="ellipsis").append_text(this)
            tabs.append(f" {PANES.index(view.pane) + 1}/{len(PANES)}", style="dim")
        return tabs.append_text(rest)

    def _order(self) -> Text:
        """Filter, shown rows and sort order."""
        view, text = self.view, Text()
        if view.filter or view.typing:
            text.append(f"  /{view.filter}{'▏' if view.typing else ''}", style="yellow")
        if len(self.rows) > self.room > 0:
            total = len(self.rows) if self._complete or view.filter else self._count(view.pane)
            text.append(f"  {self._first + 1}-{self._first + self.room} of {total}")
        if view.pane == "queue" and self._data["queue_at"] < self._data["at"]:
            text.append(f"  as of {ago(self._data['queue_at'], self._shown_at)}", style="yellow")
        sort = "position" if (view.pane, view.sort) == ("queue", QUEUE_SORT) else view.sort
        return text.append(f"  by {sort}{', reversed' if view.backwards else ''}", style="dim")

    def _count(self, pane: str) -> str:
        return str(self._data["counts"].get(pane, len(self._data[pane])))

    def _footer(self, width: int) -> Text:
        foot = Text(no_wrap=True, overflow="ellipsis")
        for key, does in _TYPING if self.view.typing else _HINTS:
            hint = Text.assemble((f" {key} ", "reverse"), f" {does}  ")
            if foot.cell_len + hint.cell_len > width:
                break
            foot.append_text(hint)
        return foot

    def _empty_reason(self) -> str:
        known, pane = len(self._data[self.view.pane]), self.view.pane
        if self.view.filter and not self._more:
            return f"No row contains {self.view.filter!r}."
        if self.view.filter and known:
            return f"None of the first {known} rows of {self._count(pane)} contains {self.view.filter!r}."
        if self._more:
            return f"There are {self._count(pane)}, and none was fetched yet."
        words = {"queue": "Nothing waits.", "running": "Nothing runs.", "nodes": "No nodes are known."}
        return words.get(pane, "There are no clusters.")

    def _table(self, rows: Sequence[Mapping[str, Any]]) -> FittingTable:
        match self.view.pane:
            case "clusters":
                return load_table(rows, drop=("NODES", "GPU", "MEMORY GiB", "WHY", "CPU"))
            case "nodes":
                return _nodes_table(rows)
            case "queue":
                return waiting_table(rows, self._shown_at)
        return items_table(rows, self._shown_at)


def _nodes_table(rows: Sequence[Mapping[str, Any]]) -> FittingTable:
    cells = []
    for row in rows:
        has = dict(row["Resources"])
        cpu, memory, gpu = has.pop("CPU", 0.0), has.pop("memory", 0.0), has.pop("GPU", 0.0)
        has.pop("object_store_memory", None)
        other = ", ".join(f"{name} {amount:g}" for name, amount in has.items() if not name.startswith("node:"))
        cells.append((row["NodeID"], row["Cluster"], f"{cpu:g}", f"{memory / GIB:.3g}", f"{gpu:g}", other))
    return FittingTable(_NODES, cells, cut=("NODE", "OTHER"), drop=("OTHER", "GPU", "MEMORY GiB"))
