"""Which files of a folder belong into a package: ignore files and `excludes` obeyed, links kept inside.

`.gitignore` and `.rayignore` are read in every folder, as Ray does it. What one of them says about a file is undone by
a deeper one with `!`, as in git and unlike Ray, which then leaves the file out.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISDIR, S_ISREG, S_IXUSR
from typing import TYPE_CHECKING

from ray_multicluster_scheduler.common.exception import TaskSubmissionError

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

ALWAYS_SKIPPED = frozenset({".git", "__pycache__"})
NO_GITIGNORE = "RAY_RUNTIME_ENV_IGNORE_GITIGNORE"
"""Set to 1, `.gitignore` is not read: for generated code, which git does not keep but a cluster needs."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Entry:
    """One file, or one folder without anything in it. ``stamp`` changes whenever the content may have."""

    name: str
    path: Path
    executable: bool
    is_dir: bool
    stamp: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Rules:
    """The ignore patterns of one folder; ``prefix`` is that folder's own name in the package, with a slash."""

    prefix: str
    patterns: GitIgnoreSpec


def list_entries(root: Path, excludes: Sequence[str] = ()) -> list[Entry]:
    """All that belongs into the package of ``root``, sorted by name. Raises TaskSubmissionError."""
    walk = _Walk(root.resolve(), _patterns(excludes, what="excludes"))
    try:
        entries = list(walk.entries(root, "", (), ()))
    except OSError as error:
        raise TaskSubmissionError(
            f"{error.filename or root} cannot be read: {error.strerror}.",
            next_step="make it readable, or leave it out with `excludes` in runtime_env",
        ) from error
    return sorted(entries, key=lambda entry: entry.name)


def file_entry(path: Path) -> Entry:
    """The entry of a single file, named as it is."""
    return _entry(path.name, path, path.stat())


@dataclass(frozen=True, slots=True)
class _Walk:
    """One walk over a folder. ``excludes`` are relative to its root and no `.gitignore` can undo them."""

    root: Path
    excludes: GitIgnoreSpec

    def entries(self, folder: Path, prefix: str, above: tuple[Path, ...], rules: tuple[_Rules, ...]) -> Iterator[Entry]:
        """``above`` are the real folders that we are inside of: a link back to one of them would never end."""
        here = (*above, folder.resolve())
        rules += _own_rules(folder, prefix)
        for item in sorted(os.scandir(folder), key=lambda item: item.name):
            name, path = prefix + item.name, Path(item.path)
            if item.name in ALWAYS_SKIPPED or (item.is_symlink() and not self._stays_inside(path)):
                continue
            status = item.stat()
            is_dir = S_ISDIR(status.st_mode)
            if self._ignored(name + "/" if is_dir else name, rules):
                continue
            if S_ISREG(status.st_mode):
                yield _entry(name, path, status)
            elif is_dir and path.resolve() not in here:
                inner = list(self.entries(path, name + "/", here, rules))
                yield from inner or [_entry(name, path, status)]

    def _ignored(self, name: str, rules: Sequence[_Rules]) -> bool:
        """Among ignore files, the innermost one that says anything decides, as in git."""
        if self.excludes.match_file(name):
            return True
        verdicts = (rule.patterns.check_file(name.removeprefix(rule.prefix)).include for rule in reversed(rules))
        return next((verdict for verdict in verdicts if verdict is not None), False)

    def _stays_inside(self, link: Path) -> bool:
        target = link.resolve()
        if target.exists() and target.is_relative_to(self.root):
            return True
        logger.warning("%s is left out of the package: its target %s is missing or outside of it", link, target)
        return False


def _own_rules(folder: Path, prefix: str) -> tuple[_Rules, ...]:
    names = (".rayignore",) if os.environ.get(NO_GITIGNORE) == "1" else (".gitignore", ".rayignore")
    files = [folder / name for name in names if (folder / name).is_file()]
    return tuple(_Rules(prefix, _patterns(_lines(file), what=str(file))) for file in files)


def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8", errors="replace").splitlines()


def _patterns(lines: Iterable[str], *, what: str) -> GitIgnoreSpec:
    from pathspec import GitIgnoreSpec  # noqa: PLC0415 - only a program that ships files needs it

    try:
        return GitIgnoreSpec.from_lines(lines)
    except ValueError as error:
        raise TaskSubmissionError(
            f"{what} holds a pattern that is not in .gitignore syntax: {error}.", next_step="correct the pattern"
        ) from error


def _entry(name: str, path: Path, status: os.stat_result) -> Entry:
    stamp = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_mode)
    is_dir = S_ISDIR(status.st_mode)
    return Entry(name, path, bool(status.st_mode & S_IXUSR) and not is_dir, is_dir, stamp)
