"""A handle as a table for notebooks: what is known here. Nobody is asked, so it never waits."""

from __future__ import annotations

from ray_multicluster_scheduler.common.tables import html_facts
from ray_multicluster_scheduler.control_plane.runtime.item import Item, Promise


def handle_html(kind: str, item_id: str, item: Promise, name: str | None = None) -> str:
    """``kind`` is the word for it, ``name`` its name if its item does not have the right one."""
    outcome, transition = item.outcome, item.transition if isinstance(item, Item) else None
    why = outcome.completion.message if outcome is not None else transition.sentence if transition is not None else None
    named = name or (item.task.name if isinstance(item, Item) else None)
    facts = [
        ("id", item_id),
        ("name", named),
        ("state", str(item.state)),
        ("cluster", item.cluster),
        ("attempt", item.attempt or None),
        ("repeats", item.task.repeats if isinstance(item, Item) else None),
        ("why", why),
    ]
    return html_facts(kind, facts)
