"""order: priority, then fair share, then first come."""

from __future__ import annotations

from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Persist
from ray_multicluster_scheduler.simulation.checker.history_index import Entry
from ray_multicluster_scheduler.simulation.checker.history_state import Book
from ray_multicluster_scheduler.simulation.checker.item_history import Item
from ray_multicluster_scheduler.simulation.checker.property import BookJudge, is_placed


class Order(BookJudge):
    """Only items that placement cannot tell apart are compared: who could not have gone was not overtaken.

    Of one owner, priority and shape: strictly first come. Of one shape, the higher priority, unless ageing says
    otherwise; at one priority, an owner who holds nothing before one who holds something. Once a place may be kept for
    somebody, who is short may backfill where another may not, so then only the first of these is judged.
    """

    name = "order"
    sentence = (
        "Of items that could go alike, the more urgent goes first, then the owner who holds less, then the older."
    )

    def see(self, entry: Entry, book: Book) -> None:
        if type(entry.what) is not Persist or not is_placed(entry.what, book):
            return
        item = book.items[entry.what.transition.task_id]
        shape = item.shape
        alike = [one for one in book.waiting.values() if one is not item and one.shape == shape]
        if not alike:
            return
        self._first_come(entry, item, alike)
        if entry.what.transition.code != "SENT_AHEAD" and not book.room_may_be_kept(entry.at):
            others = [one for one in alike if book.may_start(one)]
            self._urgency(entry, item, others, book)
            self._share(entry, item, others, book)

    def _first_come(self, entry: Entry, item: Item, alike: list[Item]) -> None:
        for one in alike:
            if _line(one) == _line(item) and one.number < item.number:
                self.accuse(entry, f"{item.task.id} goes before {one.task.id}, which came first and waits for the same")
                return

    def _urgency(self, entry: Entry, item: Item, others: list[Item], book: Book) -> None:
        level = [one for one in book.waiting.values() if one.priority == item.priority]
        oldest = min((one.task.submitted_at for one in (item, *level)), default=0.0)
        best = oldest - item.priority * book.settings.ageing_s
        for one in others:
            urgency = one.task.submitted_at - one.priority * book.settings.ageing_s
            if one.priority > item.priority and urgency < best:
                self.accuse(
                    entry,
                    f"{item.task.id} (priority {item.priority}) goes before {one.task.id} (priority {one.priority})",
                )
                return

    def _share(self, entry: Entry, item: Item, others: list[Item], book: Book) -> None:
        if book.settings.order != "fair" or any(one.priority != item.priority for one in book.waiting.values()):
            return
        if not book.held_by(item.task.owner):
            return
        for one in others:
            if one.task.owner != item.task.owner and not book.held_by(one.task.owner):
                self.accuse(
                    entry,
                    f"{item.task.id} of {item.task.owner!r}, who holds something, goes before {one.task.id} of "
                    f"{one.task.owner!r}, who holds nothing",
                )
                return


def _line(item: Item) -> tuple[str, int]:
    return item.task.owner, item.priority
