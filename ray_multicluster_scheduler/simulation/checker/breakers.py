"""user_errors_never_open_a_breaker."""

from __future__ import annotations

from ray_multicluster_scheduler.simulation.checker.history_index import Entry
from ray_multicluster_scheduler.simulation.checker.history_state import Book
from ray_multicluster_scheduler.simulation.checker.property import BookJudge
from ray_multicluster_scheduler.simulation.history import Looked


class UserErrorsNeverOpenABreaker(BookJudge):
    """A breaker may be open only where the cluster itself failed ``breaker_failures`` times in a row."""

    name = "user_errors_never_open_a_breaker"
    sentence = "Only failures of a cluster itself keep work away from it; exceptions and crashes of user code never do."

    def see(self, entry: Entry, book: Book) -> None:
        if type(entry.what) is not Looked:
            return
        for name in entry.what.open_breakers:
            cluster = book.clusters.get(name)
            if cluster is not None and not cluster.may_be_open:
                self.accuse(entry, f"the breaker of {name} is open, and {name} has not failed that often")
