"""YAML (and so JSON) with errors in words, and without silently doubled keys."""

from __future__ import annotations

from collections.abc import Hashable
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


def parse_yaml(text: str, source: str) -> Any:
    """The data in ``text``. Raises ConfigurationError with line and column; no line of the text is shown."""
    try:
        return yaml.load(text, Loader=_Loader)  # nosec B506 # _Loader is a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = error.problem or error.context or "it cannot be understood"
        raise _not_yaml(f"{source}{place}: this is not YAML: {problem}.") from None
    except yaml.YAMLError:
        raise _not_yaml(f"{source} is not YAML: it holds characters that YAML does not allow.") from None


def _not_yaml(message: str) -> ConfigurationError:
    return ConfigurationError(message, next_step="mind indentation, colons and quotes in that place")
