"""YAML (and so JSON) with errors in words, without silently doubled keys, and with the lines that things stand in."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from ray_multicluster_scheduler.common.exception import ConfigurationError


class _Loader(yaml.SafeLoader):
    """Refuses a key that is given twice: YAML itself would keep the last one and say nothing."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        problem=f"the key {key.value!r} is given twice", problem_mark=key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=deep)
        except ValueError:  # 2026-13-01 looks like a date and is none
            raise yaml.constructor.ConstructorError(
                problem="the value is not what it looks like; quote it if it is text", problem_mark=node.start_mark
            ) from None


@dataclass(frozen=True, slots=True)
class Lines:
    """Where in a text its keys and items stand. Looked up when somebody asks: by aliases, a short text can hold more
    places than could be listed."""

    root: yaml.Node | None = None
    above: tuple[str, ...] = ()

    def below(self, *above: str) -> Lines:
        """The same text, where it stands for what is below this path."""
        return Lines(self.root, above)

    def of(self, path: Sequence[object]) -> int | None:
        """The line of this key or item, or of the nearest one around it; None: it is nobody's."""
        node, line = self.root, None
        for part in path[len(self.above) :]:
            found = _inside(node, part)
            if found is None:
                break
            line, node = found
        return line


NO_LINES = Lines()
"""Of what was no text."""


def parse_yaml(text: str, source: str) -> Any:
    """The data in ``text``. Raises ConfigurationError with line and column; no line of the text is shown."""
    return parse_with_lines(text, source)[0]


def parse_with_lines(text: str, source: str) -> tuple[Any, Lines]:
    """The same, and where in the text each part stands."""
    try:
        loader = _Loader(text)
        try:
            root = loader.get_single_node()
            return None if root is None else loader.construct_document(root), Lines(root)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = error.problem or error.context or "it cannot be understood"
        if "<block" in problem:  # the parser's own words for it
            problem = "its indentation does not fit the lines above it"
        raise _not_yaml(f"{source}{place}: this is not YAML: {problem}.") from None
    except yaml.YAMLError as error:
        at = getattr(error, "position", None)
        place = f", line {text.count(chr(10), 0, at) + 1}" if isinstance(at, int) else ""
        raise _not_yaml(f"{source}{place}: this is not YAML: it holds characters that YAML does not allow.") from None
    except RecursionError:
        raise _not_yaml(f"{source}: this is nested too deeply.") from None


def _inside(node: yaml.Node | None, part: object) -> tuple[int, yaml.Node] | None:
    """A key's own line, and what stands behind it; of doubles that ``<<`` brings, the last one holds."""
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part].start_mark.line + 1, node.value[part]
    if isinstance(node, yaml.MappingNode):
        for key, value in reversed(node.value):
            if isinstance(key, yaml.ScalarNode) and key.value == str(part):
                return key.start_mark.line + 1, value
    return None


def _not_yaml(message: str) -> ConfigurationError:
    return ConfigurationError(message, next_step="mind indentation, colons and quotes in that place")
