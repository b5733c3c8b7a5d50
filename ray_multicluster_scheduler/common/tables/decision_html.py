"""A placement decision as tables for notebooks. It says what the text for people says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ray_multicluster_scheduler.common.tables import html_tables
from ray_multicluster_scheduler.common.tables.decision_table import TITLES, decision_lines

if TYPE_CHECKING:
    from ray_multicluster_scheduler.common.model.decision import SchedulingDecision


def decision_html(decision: SchedulingDecision) -> str:
    """Where it goes or why it waits, and a line for each cluster."""
    facts = [
        ("cluster", decision.cluster),
        ("code", decision.code),
        ("sentence", decision.sentence),
        ("goes on when", decision.unblocked_by),
    ]
    return html_tables.facts("Decision", facts) + candidates_html(decision)


def candidates_html(decision: SchedulingDecision | Mapping[str, Any]) -> str:
    """What each cluster says; nothing if none was asked."""
    lines = decision_lines(decision)
    return html_tables.table("Clusters", [one.lower() for one in TITLES], lines) if lines else ""
