"""How `rmcs top` looks: four lines around one table, in as much room as there is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ray_multicluster_scheduler.cli.layout.cluster_load import GIB
from ray_multicluster_scheduler.cli.layout.item_tables import items_table, waiting_table
from ray_multicluster_scheduler.cli.layout.load_table import load_table
from ray_multicluster_scheduler.cli.layout.table import FittingTable
from ray_multicluster_scheduler.cli.layout.times import ago, length
from ray_multicluster_scheduler.cli.top.state import MOST_ROWS, PANES, View, chosen, within

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.text import Text

AROUND = 4
"""Lines that are no rows: two above, the titles of the table, and the keys."""
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
"""The first ones stay longest where there is little room."""
_TYPING = (("enter", "keep"), ("esc", "no filter"))


class TopPicture:
    """``trouble``: why the service does not answer, and since when; None: it does."""

    def __init__(
        self, view: View, seen: Mapping[str, Any], now: float, height: int, trouble: tuple[str, float] | None = None
    ) -> None:
        self._seen, self._now, self._height, self._trouble = seen, now, height, trouble
        self._moment: float = seen["at"] if view.paused else now  # of a pause also the times are those of one moment
        self.rows = chosen(view, seen)
        self.room = max(0, height - AROUND)
        self._more = bool(seen["more"].get(view.pane))
        self._whole = not self._more or seen["asked"][view.pane] >= MOST_ROWS
        self.view = within(view, self._reach(view), self.room)
        self._first = within(view, len(self.rows), self.room).first

    def _reach(self, view: View) -> int:
        """How many rows may be scrolled to: those that are asked for just now, too; they are shown when they come."""
        if self._whole or view.filter or self._trouble is not None:
            return len(self.rows)
        count = self._count(view.pane)
        return max(len(self.rows), min(MOST_ROWS, int(count)) if count.isdecimal() else MOST_ROWS)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment

        width = options.max_width
        shown = self.rows[self._first : self._first + self.room]
        parts = [self._head(), self._tabs(width, styled=console.color_system is not None)]
        table = self._table(shown) if shown else self._nothing()
        lines = [line for one in parts for line in console.render_lines(one, options, pad=False)[:1]]
        lines += console.render_lines(table, options, pad=False)[: self.room + 1]
        lines = lines[: max(0, self._height - 1)]
        lines += [[] for _ in range(self._height - 1 - len(lines))]
        lines += console.render_lines(self._foot(width), options, pad=False)[:1]
        for number, line in enumerate(lines):
            yield from Segment.adjust_line_length(line, width, pad=False)
            if number < len(lines) - 1:
                yield Segment.line()

    def _head(self) -> Text:
        from rich.text import Text

        head = Text(no_wrap=True, overflow="ellipsis")
        head.append("PAUSED  " if self.view.paused else "", style="bold yellow")
        if self._trouble is not None:
            why, since = self._trouble
            lost = f"No answer for {length(self._now - since)}; it is asked again. {why}"
            return head.append(lost, style="bold red")
        return head.append(f"rmcs {self._seen['version']} at {self._seen['address']}", style="bold")

    def _tabs(self, width: int, *, styled: bool) -> Text:
        """The pane that is looked at is reversed; where there are no styles it stands in brackets."""
        from rich.text import Text

        view, rest = self.view, self._how()
        names = {pane: f"{pane.capitalize()} {self._count(pane)}" for pane in PANES}
        this = Text(f" {names[view.pane]} " if styled else f"[{names[view.pane]}]", style="reverse bold")
        tabs = Text(no_wrap=True, overflow="ellipsis")
        for pane, name in names.items():
            tabs.append_text(this if pane == view.pane else Text(f" {name} "))
        if tabs.cell_len + (rest.cell_len if view.filter or view.typing else 0) > width:
            tabs = Text(no_wrap=True, overflow="ellipsis").append_text(this)
            tabs.append(f" {PANES.index(view.pane) + 1}/{len(PANES)}", style="dim")
        return tabs.append_text(rest)

    def _how(self) -> Text:
        """Filtered, sorted, and which rows of how many."""
        from rich.text import Text

        view, how = self.view, Text()
        if view.filter or view.typing:
            how.append(f"  /{view.filter}{'▏' if view.typing else ''}", style="yellow")
        if len(self.rows) > self.room > 0:
            total = len(self.rows) if self._whole or view.filter else self._count(view.pane)
            how.append(f"  {self._first + 1}-{self._first + self.room} of {total}")
        if view.pane == "queue" and self._seen["queue_at"] < self._seen["at"]:
            how.append(f"  as of {ago(self._seen['queue_at'], self._moment)}", style="yellow")
        return how.append(f"  by {view.sort}{', backwards' if view.backwards else ''}", style="dim")

    def _count(self, pane: str) -> str:
        return str(self._seen["counts"].get(pane, len(self._seen[pane])))

    def _foot(self, width: int) -> Text:
        from rich.text import Text

        foot = Text(no_wrap=True, overflow="ellipsis")
        for key, does in _TYPING if self.view.typing else _HINTS:
            hint = Text.assemble((f" {key} ", "reverse"), f" {does}  ")
            if foot.cell_len + hint.cell_len > width:
                break
            foot.append_text(hint)
        return foot

    def _nothing(self) -> Text:
        from rich.text import Text

        return Text(self._why_nothing(), no_wrap=True, overflow="ellipsis")

    def _why_nothing(self) -> str:
        known, pane = len(self._seen[self.view.pane]), self.view.pane
        if self.view.filter and not self._more:
            return f"Nothing here has {self.view.filter!r} in it."
        if self.view.filter and known:
            return f"None of the first {known} has {self.view.filter!r} in it; there are {self._count(pane)}."
        if self._more:
            return f"There are {self._count(pane)}, and none of them is known yet."
        words = {"queue": "Nothing waits.", "running": "Nothing runs.", "nodes": "No nodes are known."}
        return words.get(pane, "There are no clusters.")

    def _table(self, rows: Sequence[Mapping[str, Any]]) -> FittingTable:
        match self.view.pane:
            case "clusters":
                return load_table(rows, drop=("NODES", "GPU", "MEMORY GiB", "WHY", "CPU"))
            case "nodes":
                return _nodes_table(rows)
            case "queue":
                return waiting_table(rows, self._moment)
        return items_table(rows, self._moment)


def _nodes_table(rows: Sequence[Mapping[str, Any]]) -> FittingTable:
    cells = []
    for row in rows:
        has = dict(row["Resources"])
        cpu, memory, gpu = has.pop("CPU", 0.0), has.pop("memory", 0.0), has.pop("GPU", 0.0)
        has.pop("object_store_memory", None)
        other = ", ".join(f"{name} {amount:g}" for name, amount in has.items() if not name.startswith("node:"))
        cells.append((row["NodeID"], row["Cluster"], f"{cpu:g}", f"{memory / GIB:.3g}", f"{gpu:g}", other))
    return FittingTable(_NODES, cells, cut=("NODE", "OTHER"), drop=("OTHER", "GPU", "MEMORY GiB"))
