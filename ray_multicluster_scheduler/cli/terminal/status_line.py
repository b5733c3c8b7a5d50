"""What goes on meanwhile, for a person who watches; nobody else wants to read of it afterwards."""

from __future__ import annotations

from ray_multicluster_scheduler.cli.service.item_wait import Reason


class Meanwhile(Reason):
    """A spinner on a terminal, and nothing elsewhere. No data may be printed while it spins: it would come out where
    the spinner is."""

    def show(self, text: str) -> None:
        if self._spinner is not None:
            super().show(text)
