"""Every Python example of the documentation prints the shown output, on real clusters."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ray_multicluster_scheduler import UnifiedScheduler
from tests.support.by_value_functions import all_idle
from tests.support.docs_blocks import DOCS, ROOT, Block, blocks, prints
from tests.support.running_service import RunningService

FOLDERS = ("start", "tutorials", "concepts", "how-to")
PAGES = [ROOT / "README.md"] + [
    page
    for folder in FOLDERS
    for page in sorted((DOCS / folder).glob("*.md"))
    if any(one.language == "python" for one in blocks(page))
]
NEEDS_A_SERVICE = {"service.md"}
NEXT = "----- next example -----"


@pytest.fixture
def with_service(config_path: Path, tmp_path: Path) -> Iterator[dict[str, str]]:
    with RunningService(config_path, tmp_path / "state") as service:
        yield {"RMCS_ADDRESS": service.address, "RMCS_TOKEN": service.token}
        service.stop()


def script(page: list[Block]) -> str:
    """Run the blocks of a page in order in one namespace, as a reader would."""
    return f"\nprint({NEXT!r}, flush=True)\n".join(one.code for one in page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_examples_print_the_shown_output(
    page: Path, config_path: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with UnifiedScheduler(config_path) as beside:
        all_idle(beside)  # what the page before used would be seen as another user's
    found = [one for one in blocks(page) if one.language == "python"]
    file = tmp_path / "example.py"
    file.write_text(script(found), encoding="utf-8")
    kept = {key: value for key, value in os.environ.items() if not key.startswith("RMCS_") or key == "RMCS_RAY_PYTHON"}
    where = {"RMCS_CONFIG": str(config_path)}
    if page.name in NEEDS_A_SERVICE:
        where = request.getfixturevalue("with_service")
    done = subprocess.run(
        [sys.executable, str(file)],
        cwd=tmp_path,
        env={**kept, **where, "RMCS_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    printed = done.stdout.split(NEXT)
    assert len(printed) == len(found)
    for block, text in zip(found, printed, strict=True):
        assert prints(block.shown, text), f"{block.page}:{block.line}\nshown:\n{block.shown}\nprinted:\n{text}"
