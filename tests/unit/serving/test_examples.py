"""The programs and the configuration in examples/serving run as they stand."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from ray_multicluster_scheduler.serving import LookupPredictor
from ray_multicluster_scheduler.serving.config import ServingConfig, read_config
from tests.support.docs_blocks import ROOT, blocks
from tests.support.serving_instances import OpenAIStub
from tests.support.serving_server import Server

EXAMPLES = ROOT / "examples" / "serving"


def run(name: str, *arguments: str) -> str:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_basic_usage_sends_more_to_the_fast_instance() -> None:
    lines = run("basic_usage.py").splitlines()
    assert "fast  60, slow  60" in lines[0]
    fast = int(lines[2].split("fast ")[1].split(",")[0])
    assert fast > 65
    assert "expected to finish" in lines[3] or "moved to a free slot" in lines[3] or "fewest tasks" in lines[3]


def test_the_custom_strategy_keeps_an_instance_free() -> None:
    assert "because urgent: finishes first" in run("custom_strategy.py")


def test_the_openai_client(server: Server, llm: Callable[..., OpenAIStub]) -> None:
    server.ok("/ti/register", {"host": "127.0.0.1", "port": llm().port, "kind": "openai"})
    lines = run("openai_client.py", f"{server.url}/v1").splitlines()
    assert lines[0].startswith("there hello from ")
    assert lines[1].strip() == "another after word one"


def test_the_configuration_shows_every_key() -> None:
    config = read_config(EXAMPLES / "config_example.yaml")
    assert config.model_fields_set == set(ServingConfig.model_fields)
    shown = {key for instance in config.instances for key in instance.model_fields_set}
    assert shown == set(type(config.instances[0]).model_fields)
    assert config.predictions is not None
    found = LookupPredictor(config.predictions).predict("ocr", {"hardware": "t4"})
    assert found is not None
    assert found.mean_ms == 98.0


def test_the_table_of_the_documentation_loads(tmp_path: Path) -> None:
    (block,) = [one for one in blocks(ROOT / "docs" / "lookup-predictor.md") if one.language == "json"]
    (tmp_path / "table.json").write_text(block.code)
    assert LookupPredictor(tmp_path / "table.json").predict("ocr", {}) is not None
    assert json.loads(block.code)[0] == json.loads((EXAMPLES / "predictions.json").read_text())[0]
