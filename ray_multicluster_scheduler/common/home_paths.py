"""Rewrites paths below one home directory to the home directory of another cluster. No file access.

Arguments, command lines and environments of items may contain such paths, and users have different home directories on
their machine and on each cluster.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

_BEFORE = r"(?:^|(?<=[\s'\"`=:,;|&<>()\[\]{}]))"
_AFTER = r"(?=$|[/\s'\"`=:,;|&<>()\[\]{}\\])"
_REST = r"(?:/[^\s'\"`=:,;|&<>()\[\]{}\\]*)?"

_CONTAINERS = frozenset({list, tuple, dict})

Changes = list[tuple[str, str]]


def move_home_paths(
    value: Any, homes: Sequence[str], target: str | None, *, words: bool = False
) -> tuple[Any, Changes]:
    """Rewrite paths below any of ``homes`` to ``target``; return the value and the changes as (old, new), each once.

    Converts texts and path objects, also inside lists, tuples and the values of dicts. A text must be such a path as a
    whole; with ``words`` it may also contain paths as words, as a command line does. A value without such paths is
    returned as the same object.
    """
    if target is None:
        return value, []
    mover = _Mover(homes, target, words)
    return mover.move(value), list(dict.fromkeys(mover.changes))


def find_home_paths(value: Any, homes: Sequence[str], limit: int = 20) -> tuple[str, ...]:
    """The paths in ``value`` that begin with one of ``homes``, at most ``limit`` of them."""
    # No home is equal to this target, so every such path is a change.
    _, changes = move_home_paths(value, homes, "/\0")
    return tuple(old for old, _ in changes[:limit])


def find_in_arguments(
    args: Sequence[Any], kwargs: Mapping[str, Any], homes: Sequence[str], limit: int = 20
) -> tuple[str, ...]:
    """The same for the arguments of a call, with a fast path for those that cannot contain a path."""
    if not any(map(_may_hold_path, args)) and not any(map(_may_hold_path, kwargs.values())):
        return ()
    return find_home_paths((tuple(args), dict(kwargs)), homes, limit)


def _may_hold_path(value: object) -> bool:
    """Whether it may contain a path; False is certain."""
    if type(value) is str:
        return "/" in value
    return type(value) in _CONTAINERS or isinstance(value, PurePath)


class _Mover:
    """One conversion; keeps its changes, and the containers being converted, so that cyclic lists end."""

    def __init__(self, homes: Sequence[str], target: str, words: bool) -> None:
        self._target = target.rstrip("/")
        self.changes: Changes = []
        self._inside: set[int] = set()
        known = {home.rstrip("/") for home in (*homes, target)} - {""}
        # The longest first, so that the innermost of nested homes matches. Paths below the target do not change.
        choices = "|".join(re.escape(home) for home in sorted(known, key=len, reverse=True))
        pattern = f"{_BEFORE}({choices}){_AFTER}({_REST})" if words else rf"\A({choices})(?=/|\Z)(.*)\Z"
        self._path = re.compile(pattern, re.DOTALL)

    def move(self, value: Any) -> Any:
        if type(value) is str:
            return self._text(value)
        if isinstance(value, PurePath):
            text = self._text(str(value))
            return value if text == str(value) else type(value)(text)
        if type(value) in _CONTAINERS and id(value) not in self._inside:
            self._inside.add(id(value))
            try:
                return self._container(value)
            finally:
                self._inside.discard(id(value))
        return value

    def _container(self, value: Any) -> Any:
        if type(value) is dict:
            changed = {key: self.move(item) for key, item in value.items()}
            return changed if any(changed[key] is not value[key] for key in value) else value
        items = [self.move(item) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return tuple(items) if type(value) is tuple else items

    def _text(self, text: str) -> str:
        if not self._target or "/" not in text:
            return text
        changed = self._path.sub(self._moved, text)
        return text if changed == text else changed

    def _moved(self, match: re.Match[str]) -> str:
        new = self._target + match.group(2)
        if new != match.group(0):
            self.changes.append((match.group(0), new))
        return new
