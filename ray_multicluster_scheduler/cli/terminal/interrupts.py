"""Ctrl+C while an item is followed: the work goes on, and how to follow and how to end it is said."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from ray_multicluster_scheduler.cli import exit_codes
from ray_multicluster_scheduler.cli.layout.output import say
from ray_multicluster_scheduler.cli.service.client import path_of
from ray_multicluster_scheduler.cli.service.items import how_it_ends

if TYPE_CHECKING:
    from ray_multicluster_scheduler.cli.service.client import Service

_END = {"job": "stop", "task": "cancel"}


def goes_on(item_id: str, group: str = "task") -> str:
    """What whoever does not wait for its end any longer has to know."""
    follow, end = f"`rmcs {group} logs -f {item_id}`", f"`rmcs {group} {_END[group]} {item_id}`"
    return f"{item_id} goes on; follow it with {follow}, end it with {end}"


@contextmanager
def interrupted_well(service: Service, item_id: str, *, cancel: bool, group: str = "task") -> Iterator[None]:
    """Ctrl+C ends the wait; the work goes on, and that is said, or it is cancelled if that is wanted. ``group`` is that
    of the commands which are named: `rmcs task` or `rmcs job`."""
    try:
        yield
    except KeyboardInterrupt:
        if cancel:
            answer = service.order(path_of("items", item_id, "cancel"), {"reason": "Ctrl+C at `rmcs`"})
            say(f"{item_id} {how_it_ends(answer)}")
        else:
            say(goes_on(item_id, group))
        raise typer.Exit(exit_codes.INTERRUPTED) from None
