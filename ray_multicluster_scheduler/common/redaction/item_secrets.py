"""The secrets of an item itself, covered wherever a cluster says them again: failures, logs, output.

Ray writes the whole command line of a job into its log, and a program may print what it was given.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from urllib.parse import unquote

from ray_multicluster_scheduler.common.model import TaskDescription
from ray_multicluster_scheduler.common.redaction.patterns import MASKED, secrets_in_line, secrets_in_value

SHORTEST = 4
"""What is shorter stands everywhere by accident."""
_SHORTEST_LINE = 8
_MOST, _LOOKED_AT = 200, 1_000
"""Of a text that comes in pieces: so many secrets may be cut in two, and so much of each is looked for."""
_NOBODYS = frozenset({"true", "false", "none", "null"})


def secrets_of(task: TaskDescription) -> tuple[str, ...]:
    """What looks like a secret in its environment, command line and metadata; the longest first."""
    if task.job is None and not task.runtime_env:
        return ()
    found = secrets_in_value(task.runtime_env) if task.runtime_env else []
    if task.job is not None:
        found += [*secrets_in_line(task.job.entrypoint), *secrets_in_value(task.job.metadata)]
    spelt = {text for one in found for text in _spellings(one)}
    return tuple(sorted((one for one in spelt if _may_be_covered(one)), key=len, reverse=True))


def covered(text: str, secrets: Iterable[str]) -> str:
    """A text without them; the longest of them have to come first, as :func:`secrets_of` gives them."""
    for one in secrets:
        if one in text:
            text = text.replace(one, MASKED)
    return text


async def covered_pieces(pieces: AsyncIterator[str], secrets: Sequence[str]) -> AsyncGenerator[str, None]:
    """A text that comes in pieces, without them. What may be the beginning of one is held back until more comes."""
    held = ""
    async for piece in pieces:
        text = covered(held + piece, secrets)
        kept = _begun(text, secrets)
        held, told = text[len(text) - kept :], text[: len(text) - kept]
        if told:
            yield told
    if held:
        yield held


def _begun(text: str, secrets: Sequence[str]) -> int:
    """So many of its last characters may be the beginning of a secret; of a very long one, its first part counts."""
    return max((_begun_one(text, one[:_LOOKED_AT]) for one in secrets[:_MOST]), default=0)


def _begun_one(text: str, secret: str) -> int:
    at = text.find(secret[0], max(0, len(text) - len(secret) + 1))
    while at >= 0:
        if secret.startswith(text[at:]):
            return len(text) - at
        at = text.find(secret[0], at + 1)
    return 0


def _spellings(secret: str) -> Iterable[str]:
    """As it is, as it is in an address or in JSON, and line by line."""
    yield secret
    yield unquote(secret)
    yield json.dumps(secret)[1:-1]
    for line in secret.splitlines():
        if len(line) >= _SHORTEST_LINE:
            yield line


def _may_be_covered(secret: str) -> bool:
    return len(secret) >= SHORTEST and secret.lower() not in _NOBODYS and MASKED not in secret
