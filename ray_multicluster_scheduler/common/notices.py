"""Notices of the library to the person at the terminal: one line each, on stderr."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence

MAX_NAMED = 5
MAX_LINES = 20
"""Items with a line of their own; a last line counts the others."""
_MAX_KEPT, _MAX_CHARACTERS = 10_000, 300
_COLLECT_S = 0.5
"""For reports of other items to arrive."""


def notify(text: str) -> None:
    """Print a notice. Never on stdout, which belongs to the user's program."""
    print(f"rmcs: {text}", file=sys.stderr, flush=True)


def shorten(names: Sequence[str], most: int = MAX_NAMED) -> str:
    """The first names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


class UnreadFailures:
    """The failed items of this program whose error it has not read: without a report, nobody would know of them.
    Thread-safe. Of more than a bounded number only the newest are named."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._messages: dict[str, str] = {}
        self._expected: dict[str, None] = {}
        self._number_dropped = 0

    def add(self, item_id: str, message: str) -> None:
        """An item has failed."""
        with self._lock:
            if item_id in self._expected:
                del self._expected[item_id]
                return
            self._messages[item_id] = _first_line(message)[:_MAX_CHARACTERS]
            if len(self._messages) > _MAX_KEPT:
                del self._messages[next(iter(self._messages))]
                self._number_dropped += 1

    def read(self, item_id: str) -> str | None:
        """The program has asked for the item, or for a member of it. Returns the message if the item was unread."""
        if not self._messages:
            return None
        with self._lock:
            message = self._messages.pop(item_id, None)
            return message if message is not None else self._messages.pop(item_id.rpartition(".")[0], None)

    def expect(self, item_id: str) -> None:
        """The program has read an error that the failure of this item caused. The failure itself may arrive later, and
        counts as read then."""
        if self.read(item_id) is None:
            with self._lock:
                self._expected[item_id] = None
                if len(self._expected) > _MAX_KEPT:
                    del self._expected[next(iter(self._expected))]

    def __contains__(self, item_id: str) -> bool:
        return item_id in self._messages

    def clear(self) -> None:
        """In the child of a fork: the items belong to the parent."""
        self.__init__()  # type: ignore[misc]

    def report(self) -> None:
        """Print how many there are, and which."""
        with self._lock:
            failed, dropped, self._messages = self._messages, self._number_dropped, {}
        number = len(failed) + dropped
        if not number:
            return
        notify(
            "1 item failed; its result was never read:"
            if number == 1
            else f"{number} items failed; their results were never read:"
        )
        for item_id, message in list(failed.items())[:MAX_LINES]:
            notify(f"  {item_id}: {message}")
        more = number - min(len(failed), MAX_LINES)
        if more:
            notify(f"  and {more} more")


def _first_line(message: str) -> str:
    """With the first of the reasons, where a list of them follows."""
    first, _, rest = message.partition("\n")
    reason = rest.partition("\n")[0].strip() if first.endswith(":") else ""
    return f"{first} {reason}" if reason else first


class SilentClusterNotices:
    """One line when a cluster with items of this program falls silent. Used on one loop."""

    def __init__(self) -> None:
        self._items: dict[tuple[str, float], set[str]] = {}
        """By the cluster, and the time when its items reported the silence."""

    def add(self, cluster: str, at: float, sentence: str, item_id: str) -> None:
        """An item reports the silence of its cluster; all items there do so at the same time."""
        key = cluster, at
        if key not in self._items:
            import asyncio  # noqa: PLC0415 - commands that print notices start without it

            self._items[key] = set()
            asyncio.get_running_loop().call_later(_COLLECT_S, self._print, key, sentence)
        self._items[key].add(item_id)

    def _print(self, key: tuple[str, float], sentence: str) -> None:
        number = len(self._items.pop(key))
        notify(f"{number} item{'s' if number > 1 else ''} on {key[0]}: {sentence}")


unread_failures = UnreadFailures()
