"""scripts/policy_quality.py in short form: measurements, table, plot and verdicts on the floors."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("policy_quality", ROOT / "scripts" / "policy_quality.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "policy_quality", module)
    spec.loader.exec_module(module)
    return module


def test_a_short_run_writes_both(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(ROOT / "docs" / "policies.md", tmp_path)
    assert script.main(["--seeds", "1,2", "--hours", "0.3", "--docs", str(tmp_path)]) == 0
    page = (tmp_path / "policies.md").read_text()
    between = page.split(script.BEGIN)[1].split(script.END)[0]
    assert between.strip() == capsys.readouterr().out.strip()
    rows = [line for line in between.splitlines() if line.startswith("| ")]
    assert [row.split("|")[1].strip() for row in rows] == ["seed", "---", "1", "2", "worst makespan, mean wait"]
    assert "With the default rules on" in between
    bars = ElementTree.parse(tmp_path / "policy_quality.svg").getroot().findall(".//*[@width='36']")
    assert len(bars) == 6


@pytest.mark.parametrize(
    ("makespan", "share", "held"), [(1.15, 0.9, True), (1.151, 0.9, False), (1.15, 0.91, False), (1.0, 0.1, True)]
)
def test_floors(script: ModuleType, makespan: float, share: float, held: bool) -> None:
    runs = [script.Run(1, "pack", 10, 1.0, 5.0, 1.0, 0.5), script.Run(2, "pack", 10, makespan, 5.0, 1.0, share)]
    assert script.floors_hold(runs, "pack") is held


def test_the_mean_of_shares_is_geometric(script: ModuleType) -> None:
    runs = [script.Run(seed, "pack", 10, 1.0, 5.0, 1.0, share) for seed, share in ((1, 0.5), (2, 2.0))]
    assert script._mean_share(runs, "pack") == 1.0
