"""Parses YAML (and so JSON): plain error messages, no silent duplicate keys, and a line number for every key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ray_multicluster_scheduler.common.exception import ConfigurationError

_NEVER_CLOSED = ("end of stream", "<stream end>", "document separator")
_OPENED = {
    "while scanning a quoted scalar": "quote",
    "while parsing a flow sequence": "bracket",
    "while parsing a flow mapping": "brace",
}
"""By the context that the parser reports."""
_PROBLEMS = {
    r"'\t'": "a tab stands here; use spaces, not tabs",
    "'<stream end>'": "a bracket or a brace is opened and never closed",
    "'<scalar>'": "this does not belong to what is before it; is a quote missing, here or in a line above?",
    "<block": "its indentation does not fit the lines above it",
}
"""By a part of the problem that the parser reports; the first match counts."""


class _Loader(yaml.SafeLoader):
    """Records duplicate keys, of which YAML itself silently keeps the last."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.duplicates: list[tuple[str, int]] = []

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        first: dict[str, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                line = key.start_mark.line + 1
                if key.value in first:
                    sentence = f"the key {key.value!r} is given twice, first in line {first[key.value]}"
                    self.duplicates.append((sentence, line))
                first.setdefault(key.value, line)
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=deep)
        except ValueError:  # 2026-13-01 looks like a date and is none
            raise yaml.constructor.ConstructorError(
                problem="the value is not what it looks like; quote it if it is text", problem_mark=node.start_mark
            ) from None


@dataclass(frozen=True, slots=True)
class LineIndex:
    """Line numbers of keys and items of a text, found on demand: with aliases, a text can have too many to list."""

    root: yaml.Node | None = None
    above: tuple[str, ...] = ()
    duplicates: tuple[tuple[str, int], ...] = ()
    """A sentence about each duplicate key, and its line."""

    def relative_to(self, *above: str) -> LineIndex:
        """The same index, for paths below this path."""
        return LineIndex(self.root, above, self.duplicates)

    def line_of(self, path: Sequence[object]) -> int | None:
        """The line of this key or item, or of its nearest parent; None if there is none."""
        node, line = self.root, None
        for part in path[len(self.above) :]:
            found = _inside(node, part)
            if found is None:
                break
            line, node = found
        return line


NO_LINES = LineIndex()
"""For data that does not come from a text."""


def read_text(path: Path, next_step: str, origin: str = "") -> str:
    """The text of a YAML file. Raises ConfigurationError; ``origin`` is where the path was given."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text in UTF-8"
        raise ConfigurationError(f"{path}{origin} cannot be read: {reason}.", next_step=next_step) from None


def parse_yaml(text: str, source: str) -> Any:
    """The data in ``text``. Raises ConfigurationError with line and column; no line of the text is shown."""
    data, lines = parse_with_lines(text, source)
    if lines.duplicates:
        sentence, line = lines.duplicates[0]
        raise ConfigurationError(f"{source}, line {line}: {sentence}.", next_step="keep one of them")
    return data


def parse_with_lines(text: str, source: str) -> tuple[Any, LineIndex]:
    """The data, and its line numbers. Of duplicate keys the last is used; the caller reports ``duplicates``."""
    try:
        loader = _Loader(text)
        try:
            root = loader.get_single_node()
            data = None if root is None else loader.construct_document(root)
            return data, LineIndex(root, duplicates=tuple(loader.duplicates))
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        problem, mark = _explain(error)
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise _not_yaml(f"{source}{place}: this is not YAML: {problem}.") from None
    except yaml.YAMLError as error:
        at = getattr(error, "position", None)
        place = f", line {text.count(chr(10), 0, at) + 1}" if isinstance(at, int) else ""
        raise _not_yaml(f"{source}{place}: this is not YAML: it holds characters that YAML does not allow.") from None
    except RecursionError:
        raise _not_yaml(f"{source}: this is nested too deeply.") from None


def _explain(error: yaml.MarkedYAMLError) -> tuple[str, yaml.Mark | None]:
    """The problem and its place; of a bracket or quote that is never closed, where it was opened."""
    problem = error.problem or error.context or "it cannot be understood"
    mark, opened = error.problem_mark or error.context_mark, error.context_mark
    what = _OPENED.get(error.context or "")
    if what is None or opened is None:
        return next((text for found, text in _PROBLEMS.items() if found in problem), problem), mark
    if any(end in problem for end in _NEVER_CLOSED):
        return f"the {what} that is opened here is never closed", opened
    return f"{problem}, in what the {what} of line {opened.line + 1} opens", mark


def _inside(node: yaml.Node | None, part: object) -> tuple[int, yaml.Node] | None:
    """The line and value of a key; of duplicates from ``<<`` merges, the last one."""
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part].start_mark.line + 1, node.value[part]
    if isinstance(node, yaml.MappingNode):
        for key, value in reversed(node.value):
            if isinstance(key, yaml.ScalarNode) and key.value == str(part):
                return key.start_mark.line + 1, value
    return None


def _not_yaml(message: str) -> ConfigurationError:
    return ConfigurationError(message, next_step="check indentation, colons and quotes in that place")
