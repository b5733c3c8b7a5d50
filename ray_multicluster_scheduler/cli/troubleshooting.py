"""Help for errors: the sections of troubleshooting.md by code, which are also a page of the documentation."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from ray_multicluster_scheduler.common.exception import SchedulerError

_SECTION = re.compile(r"^### (?P<code>[A-Z_]+)\n\n(?P<text>.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
_SYNONYMS = re.compile(r"^\| (?P<words>`[A-Z_]+`(?:, `[A-Z_]+`)*) \| (?P<codes>\[.*\)) \|$", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")

_EMPHASIS = re.compile(r"(?<![\w*`])\*{1,2}(?=\w)([^*`\n]*\w)\*{1,2}(?![\w*`])")
_FENCE = "```"
_FENCED = re.compile(r"^(```.*?^```)$", re.MULTILINE | re.DOTALL)
_BLANK_LINES = re.compile(r"\n{2,}")
_HAS_LINES = re.compile(r"[-*+] |\d+\. |\||    ")


@cache
def _sections() -> dict[str, str]:
    return {one["code"]: _plain(one["text"]) for one in _SECTION.finditer(_text())}


@cache
def _synonyms() -> dict[str, list[str]]:
    """Other words for codes, and the codes they may mean."""
    rows = [(one["words"], _LINK.findall(one["codes"])) for one in _SYNONYMS.finditer(_text())]
    return {word: meant for words, meant in rows for word in words.replace("`", "").split(", ")}


def _text() -> str:
    return files(__package__).joinpath("troubleshooting.md").read_text(encoding="utf-8")


def _plain(text: str) -> str:
    """Markdown as plain text: each paragraph is one line; lists, tables and code blocks keep their lines."""
    parts: list[str] = []
    for part in _FENCED.split(text.strip()):
        if part.startswith(_FENCE):
            parts.append(part)
        else:
            parts += map(_plain_block, filter(None, _BLANK_LINES.split(part.strip("\n"))))
    return "\n\n".join(parts)


def _plain_block(block: str) -> str:
    plain = _EMPHASIS.sub(r"\1", _LINK.sub(r"\1", block))
    return plain if _HAS_LINES.match(plain) else plain.replace("\n", " ")


def codes() -> list[str]:
    """All codes that have a section."""
    return sorted(_sections())


def section_of(code: str) -> str | None:
    """The section about a code (meaning, and what to do) in plain text; for a synonym, the sections of the codes it may
    mean."""
    meant = _synonyms().get(code)
    if meant is None:
        return _sections().get(code)
    sections = [f"{one}: {_sections()[one]}" for one in meant]
    return "\n\n".join([f"{code} is no code; {' or '.join(meant)} may be meant.", *sections])


def next_step_of(error: SchedulerError) -> str:
    """The next step after an error; names the file of the local fleet if no clusters are configured and it is up."""
    from ray_multicluster_scheduler.control_plane.config.missing_config import NothingConfiguredError

    if isinstance(error, NothingConfiguredError):
        from ray_multicluster_scheduler.local_fleet.fleet_home import FleetHome

        home = FleetHome()
        known = home.read()
        if known is not None and known.holder.alive():
            return f"a local fleet is up, so name its file: export RMCS_CONFIG={home.config_path}"
    return error.next_step or ""
