"""A command that has the whole screen gives it back, however it ends."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn


@contextmanager
def ended_well() -> Iterator[None]:
    """A signal that ends us lets the terminal be set right first."""

    def end(number: int, _: object) -> NoReturn:
        raise SystemExit(128 + number)

    ending = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(one, end) for one in ending]
    try:
        yield
    except EOFError:  # the terminal is gone, and with it whoever looked
        raise SystemExit(128 + signal.SIGHUP) from None
    finally:
        for one, handler in zip(ending, before, strict=True):
            signal.signal(one, handler)
