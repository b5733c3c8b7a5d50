"""How busy this machine really is, whatever Ray has reserved on it. Linux only; elsewhere it is not known."""

from __future__ import annotations

from pathlib import Path

_STAT, _MEMORY = Path("/proc/stat"), Path("/proc/meminfo")


class Observer:
    """CPU use is counted between two looks, so the first one knows of memory only."""

    def __init__(self, stat: Path = _STAT, memory: Path = _MEMORY) -> None:
        self._stat, self._memory = stat, memory
        self._before: tuple[int, int] | None = None

    def look(self) -> dict[str, float] | None:
        """{cpu, memory}, each 0..1; None where it cannot be told."""
        try:
            busy, total = _ticks(self._stat.read_text())
            seen = {"memory": _memory_used(self._memory.read_text())}
        except (OSError, ValueError, KeyError, IndexError, ZeroDivisionError):
            return None
        if self._before is not None and total > self._before[1]:
            share = (busy - self._before[0]) / (total - self._before[1])
            seen["cpu"] = round(min(max(share, 0.0), 1.0), 2)
        self._before = busy, total
        return seen


def _ticks(text: str) -> tuple[int, int]:
    """Busy and all ticks since boot: `cpu user nice system idle iowait irq softirq steal guest…`."""
    numbers = [int(word) for word in text.split("\n", 1)[0].split()[1:9]]
    return sum(numbers) - numbers[3] - numbers[4], sum(numbers)


def _memory_used(text: str) -> float:
    lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    total, free = (int(lines[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    return round(1 - free / total, 2)
