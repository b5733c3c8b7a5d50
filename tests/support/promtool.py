"""promtool, which knows what Prometheus makes of rules."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

from tests.support.documented import ROOT


def promtool(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run it. It is found, or not, by scripts/setup_promtool.py."""
    spec = importlib.util.spec_from_file_location("setup_promtool", ROOT / "scripts" / "setup_promtool.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    found = script.find()
    assert found is not None, "promtool is missing: python3 scripts/setup_promtool.py"
    return subprocess.run([found, *words], capture_output=True, text=True, check=False)
