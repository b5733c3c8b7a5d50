"""What `plan` pretends to run."""

from __future__ import annotations


def nothing() -> None:
    """What `plan` pretends to run."""


class Nothing:
    """The same for actors."""
