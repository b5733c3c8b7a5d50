"""Parse and summarise the output of `py-spy record -f raw -t -F --full-filenames`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

_OURS = "ray_multicluster_scheduler/"
_THREAD = re.compile(r"thread \(([^)]*)\)(?:: (.*))?$")
_WAITING = re.compile(
    r"\w*Selector\.select \(|(?:.*\.)?wait \(|_worker \([^)]*futures/thread\.py\)|listen_error_messages \(ray/"
)
"""Innermost functions of a waiting thread, which py-spy cannot distinguish from a running one on some systems."""
_FRAME = re.compile(r"(?P<function>.+) \((?P<file>[^()]*?)(?::\d+)?\)$")


@dataclass(frozen=True)
class Frame:
    """One function on a stack and its file, without machine-specific paths."""

    function: str
    file: str

    @property
    def ours(self) -> bool:
        return self.file.startswith(_OURS)

    def __str__(self) -> str:
        return f"{self.function} ({self.file})"


@dataclass(frozen=True)
class Sample:
    """One stack, outermost frame first, and how often it was seen."""

    thread: str
    frames: tuple[Frame, ...]
    count: int

    @property
    def leaf(self) -> str:
        return str(self.frames[-1]) if self.frames else "(no Python frame)"

    @property
    def waiting(self) -> bool:
        return _WAITING.match(self.leaf) is not None

    @property
    def our_file(self) -> str:
        """Our innermost file on the stack: the time of a library counts for its caller."""
        return next((frame.file for frame in reversed(self.frames) if frame.ours), "(none of ours)")


def parse(text: str) -> list[Sample]:
    """One sample per line. Raises ValueError for an invalid line, since a partial profile would mislead."""
    return [_sample(line) for line in text.splitlines() if line.strip()]


def summarise(text: str, ticks: int, top: int = 15) -> dict[str, Any]:
    """Per thread, the busiest first: how busy it was, in which of our files, and in which functions.

    ``ticks`` is the number of samplings: a thread that was running at each of them was busy all the time. A thread that
    waits inside C code, on a queue for instance, looks busy in the function that called it.
    """
    threads: dict[str, list[Sample]] = {}
    for sample in parse(text):
        threads.setdefault(sample.thread, []).append(sample)
    summaries = [_thread(name, samples, ticks, top) for name, samples in threads.items()]
    return {"ticks": ticks, "threads": sorted(summaries, key=lambda one: -one["busy_percent"])}


def _sample(line: str) -> Sample:
    stack, _, count = line.rpartition(" ")
    pieces = stack.split(";")
    thread = pieces.pop(0)
    while pieces and not _FRAME.match(pieces[0]):
        thread += f";{pieces.pop(0)}"  # a thread name may contain any character
    if not count.isdigit() or not _THREAD.match(thread):
        raise ValueError(f"not a line of py-spy's raw format: {line[:200]!r}")
    return Sample(_thread_name(thread), tuple(_frame(piece) for piece in pieces), int(count))


def _thread_name(text: str) -> str:
    match = _THREAD.match(text)
    assert match is not None
    return match.group(2) or f"thread {match.group(1)}"


def _frame(text: str) -> Frame:
    match = _FRAME.match(text)
    return Frame(match["function"], _short(match["file"])) if match else Frame(text, "")


def _short(path: str) -> str:
    for root in (f"/{_OURS}", "/site-packages/"):
        _, found, after = path.rpartition(root)
        if found:
            return (_OURS if root == f"/{_OURS}" else "") + after
    return "/".join(PurePosixPath(path).parts[-2:])


def _thread(name: str, samples: Iterable[Sample], ticks: int, top: int) -> dict[str, Any]:
    files: Counter[str] = Counter()
    leaves: Counter[str] = Counter()
    for sample in samples:
        if not sample.waiting:
            files[sample.our_file] += sample.count
            leaves[sample.leaf] += sample.count
    return {
        "thread": name,
        "busy_percent": round(100 * leaves.total() / ticks, 1),
        "files": _shares(files, top),
        "functions": _shares(leaves, top),
    }


def _shares(counts: Counter[str], top: int) -> list[tuple[str, float]]:
    return [(name, round(100 * count / counts.total(), 1)) for name, count in counts.most_common(top)]


def text_of(summary: dict[str, Any], quiet_percent: float = 1.0) -> str:
    """The summary as printed text, without threads that were hardly ever busy."""
    lines: list[str] = []
    for thread in summary["threads"]:
        if thread["busy_percent"] < quiet_percent:
            continue
        lines.append(f"  {thread['thread']}: busy {thread['busy_percent']:g} % of the time; of that")
        for title, key in (("in our files", "files"), ("in functions", "functions")):
            lines.append(f"    {title}:")
            lines += [f"      {share:5.1f} %  {name}" for name, share in thread[key]]
    return "\n".join(lines) or "  idle all the time"
