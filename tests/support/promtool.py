"""Run promtool, which checks rules as Prometheus evaluates them."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

from tests.support.docs_blocks import ROOT


def promtool(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the promtool that scripts/setup_promtool.py finds."""
    spec = importlib.util.spec_from_file_location("setup_promtool", ROOT / "scripts" / "setup_promtool.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    found = script.find()
    assert found is not None, "promtool is missing: python3 scripts/setup_promtool.py"
    return subprocess.run([found, *words], capture_output=True, text=True, check=False)
