"""How `rmcs top` looks: four lines around one table, in as much room as there is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ray_multicluster_scheduler.cli.cluster_load import GIB, load, nodes
from ray_multicluster_scheduler.cli.fitting_table import FittingTable
from ray_multicluster_scheduler.cli.item_tables import items_table, waiting_table
from ray_multicluster_scheduler.cli.output import cluster_state_cell
from ray_multicluster_scheduler.cli.times import length
from ray_multicluster_scheduler.cli.top_state import PANES, View, chosen, within

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.text import Text

AROUND = 4
"""Lines that are no rows: two above, the titles of the table, and the keys."""
_CLUSTERS = ("CLUSTER", "STATE", "NODES", "CPU", "MEMORY GiB", "GPU", "ITEMS", "WHY")
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
        self.rows = chosen(view, seen)
        self.room = max(0, height - AROUND)
        self.view = within(view, len(self.rows), self.room)
        self._seen, self._now, self._height, self._trouble = seen, now, height, trouble

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment

        width = options.max_width
        shown = self.rows[self.view.first : self.view.first + self.room]
        parts = [self._head(), self._tabs(width)]
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

        if self._trouble is not None:
            why, since = self._trouble
            lost = f"No answer for {length(self._now - since)}; it is asked again. {why}"
            return Text(lost, style="bold red", no_wrap=True, overflow="ellipsis")
        head = Text(no_wrap=True, overflow="ellipsis")
        head.append("PAUSED  " if self.view.paused else "", style="bold yellow")
        return head.append(f"rmcs {self._seen['version']} at {self._seen['address']}", style="bold")

    def _tabs(self, width: int) -> Text:
        from rich.text import Text

        view, rest = self.view, self._how()
        tabs = Text(no_wrap=True, overflow="ellipsis")
        for pane in PANES:
            name = f" {pane.capitalize()} {self._count(pane)} "
            tabs.append(name, style="reverse bold" if pane == view.pane else "")
        if tabs.cell_len + (rest.cell_len if view.filter or view.typing else 0) > width:
            tabs = Text(no_wrap=True, overflow="ellipsis")
            tabs.append(f" {view.pane.capitalize()} {self._count(view.pane)} ", style="reverse bold")
            tabs.append(f" {PANES.index(view.pane) + 1}/{len(PANES)}", style="dim")
        return tabs.append_text(rest)

    def _how(self) -> Text:
        """Filtered, sorted, and which rows of how many."""
        from rich.text import Text

        view, how = self.view, Text()
        if view.filter or view.typing:
            how.append(f"  /{view.filter}{'▏' if view.typing else ''}", style="yellow")
        if len(self.rows) > self.room > 0:
            how.append(f"  {view.first + 1}-{view.first + self.room} of {len(self.rows)}")
        return how.append(f"  by {view.sort}{', backwards' if view.backwards else ''}", style="dim")

    def _count(self, pane: str) -> str:
        return str(self._seen.get("counts", {}).get(pane, len(self._seen[pane])))

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

        if self.view.filter:
            return Text(f"Nothing here has {self.view.filter!r} in it.", no_wrap=True, overflow="ellipsis")
        words = {"queue": "Nothing waits.", "running": "Nothing runs.", "nodes": "No nodes are known."}
        return Text(words.get(self.view.pane, "There are no clusters."), no_wrap=True, overflow="ellipsis")

    def _table(self, rows: Sequence[Mapping[str, Any]]) -> FittingTable:
        match self.view.pane:
            case "clusters":
                return _clusters_table(rows)
            case "nodes":
                return _nodes_table(rows)
            case "queue":
                return waiting_table(rows, self._now)
        return items_table(rows, self._now)


def _clusters_table(rows: Sequence[Mapping[str, Any]]) -> FittingTable:
    cells = [
        (
            row["name"],
            cluster_state_cell(row),
            nodes(row),
            load(row, "CPU"),
            load(row, "memory", GIB),
            load(row, "GPU"),
            row["items"],
            str(row.get("sentence") or "").partition("\n")[0],
        )
        for row in rows
    ]
    return FittingTable(_CLUSTERS, cells, cut=("WHY",), drop=("NODES", "GPU", "MEMORY GiB", "WHY", "CPU"))


def _nodes_table(rows: Sequence[Mapping[str, Any]]) -> FittingTable:
    cells = []
    for row in rows:
        has = dict(row["Resources"])
        cpu, memory, gpu = has.pop("CPU", 0.0), has.pop("memory", 0.0), has.pop("GPU", 0.0)
        has.pop("object_store_memory", None)
        other = ", ".join(f"{name} {amount:g}" for name, amount in has.items() if not name.startswith("node:"))
        cells.append((row["NodeID"], row["Cluster"], f"{cpu:g}", f"{memory / GIB:.3g}", f"{gpu:g}", other))
    return FittingTable(_NODES, cells, cut=("NODE", "OTHER"), drop=("OTHER", "GPU", "MEMORY GiB"))
