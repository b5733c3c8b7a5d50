"""The examples of docs/api.md: taken from the text, run as a person would, and what they are to print."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.docs_blocks import DOCS, ROOT, Block, blocks

DOCUMENT = DOCS / "api.md"
LANGUAGES = ("sh", "python", "javascript")
SUFFIXES = {"sh": ".sh", "python": ".py", "javascript": ".mjs"}


@dataclass(frozen=True)
class Example(Block):
    """A block of code that can be run."""

    def command(self, folder: Path) -> list[str]:
        """Written to a file, and what runs it."""
        file = folder / f"example{SUFFIXES[self.language]}"
        browser = (ROOT / "tests" / "javascript" / "browser.mjs").as_uri()
        first = f'import "{browser}";\n' if self.language == "javascript" else ""
        file.write_text(first + self.code)
        runner = {"sh": ["sh", "-eu"], "python": [sys.executable], "javascript": ["node"]}[self.language]
        return [*runner, str(file)]

    def run(self, folder: Path, env: Mapping[str, str]) -> str:
        """What it printed. Fails with its last words if it did not end well."""
        done = subprocess.run(
            self.command(folder), cwd=folder, env=env, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, f"{self.line}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout


def examples() -> list[Example]:
    """In their order. A block in a language that nobody runs fails."""
    found = list(blocks(DOCUMENT))
    for one in found:
        assert one.language in LANGUAGES, f"{one.page}:{one.line}: nothing runs {one.language!r}"
    return [Example(**vars(one)) for one in found]


def check_tools() -> None:
    """Fails with what to do if the set-up was not run."""
    spec = importlib.util.spec_from_file_location("setup_node", ROOT / "scripts" / "setup_node.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.is_ready(), (
        "curl, Node 18 or newer, or what npm installs into tests/javascript is missing, so the examples of docs/api.md "
        "cannot be run: python3 scripts/setup_node.py"
    )


def environment(address: str, token: str, home: Path) -> dict[str, str]:
    """Of a program that is to use this service, and finds no other."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("RMCS_")}
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    own = {"RMCS_ADDRESS": address, "RMCS_TOKEN": token, "RMCS_HOME": str(home), "PYTHONPATH": path}
    return {**kept, **own, "PATH": os.environ.get("PATH", os.defpath), "NODE_NO_WARNINGS": "1"}
