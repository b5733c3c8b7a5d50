"""The generated verbs are what scripts/generate_verbs.py makes of UnifiedScheduler now."""

from __future__ import annotations

import importlib.util
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "generate_verbs.py"


def test_generated_verbs_are_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("generate_verbs", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    for path, text in script.generated().items():
        assert path.read_text() == text, f"{path.name} is out of date: run python scripts/generate_verbs.py"
