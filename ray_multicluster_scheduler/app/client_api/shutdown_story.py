"""How a program's work ends with the program, told item by item."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from concurrent.futures import wait as wait_futures

from ray_multicluster_scheduler.app.client_api.item import Item
from ray_multicluster_scheduler.app.client_api.runtime import Runtime

_SAY_AGAIN_S = 10.0
STOP_PATIENCE_S = 15.0
FORCE_PATIENCE_S = 5.0


def say(text: str) -> None:
    """A word to the person at the terminal; never on stdout, which belongs to the program."""
    print(f"rmcs: {text}", file=sys.stderr, flush=True)


def drain(runtime: Runtime) -> None:
    """Wait until everything is over. Ctrl+C cancels what is left instead."""
    try:
        while items := runtime.unfinished():
            say(f"waiting for {_list(items)} to end (Ctrl+C cancels)")
            wait_futures([item.future for item in items], timeout=_SAY_AGAIN_S)
    except KeyboardInterrupt:
        stop(runtime, runtime.unfinished())


def cancel_all(runtime: Runtime) -> None:
    """Cancel what is left, without a word if there is nothing."""
    items = runtime.unfinished()
    if items:
        stop(runtime, items)


def stop(runtime: Runtime, items: Iterable[Item]) -> None:
    """Cancel these and say of each what became of it; Ctrl+C while waiting forces."""
    chosen = [item for item in items if not item.future.done()]
    before = {item.id: (item.state, item.cluster) for item in chosen}
    for item in chosen:
        runtime.cancel(item.id, "the program that submitted it was interrupted", force=False)
    forced = False
    try:
        wait_futures([item.future for item in chosen], timeout=STOP_PATIENCE_S)
    except KeyboardInterrupt:
        forced = True
    left = [item for item in chosen if not item.future.done()]
    if left:
        say(f"{'forcing' if forced else 'still not over, forcing'}: {_list(left)}")
        for item in left:
            runtime.cancel(item.id, "the program that submitted it was interrupted", force=True)
        wait_futures([item.future for item in left], timeout=FORCE_PATIENCE_S)
    for item in chosen:
        state, cluster = before[item.id]
        where = f" on {cluster}" if cluster else ""
        ended = str(item.state) if item.future.done() else "not known to have ended"
        say(f"{item.id} was {state}{where}: {ended}")


def _list(items: list[Item], most: int = 5) -> str:
    shown = ", ".join(f"{item.id} ({item.state})" for item in items[:most])
    more = len(items) - most
    return f"{shown} and {more} more" if more > 0 else shown
