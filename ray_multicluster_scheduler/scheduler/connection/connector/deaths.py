"""What Ray says of an actor that is gone: has its process ended for sure?"""

from __future__ import annotations

_ENDED = "The actor is dead because its worker process has died"
"""The node that it ran on has seen it end, and told the head so. All else is said before anybody has: that a node is
dead is a guess of the head's, and an actor that `ray.kill` is to end is dead to it once the order is on its way."""


def known_death(error: BaseException | str) -> str | None:
    """The sentence by which it is known to be dead; None if this error, or this cause of death, does not tell."""
    for line in str(error).splitlines():
        if _ENDED in line:
            return line[line.index(_ENDED) :].strip().rstrip(".")
    return None
