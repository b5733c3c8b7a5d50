"""`rmcs simulate`: what it prints, what it writes, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler.main import main
from ray_multicluster_scheduler.simulation import read_trace

SMALL = "items=60 over=10min run=exponential:60 owners=ann,bob"


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "clusters.yaml"
    path.write_text(
        "settings: {resource_threshold: 1, ageing_s: 100}\n"
        "clusters:\n"
        "  - {name: big, dashboard: 'http://big.invalid:8265'}\n"
        "  - {name: fast, dashboard: 'http://fast.invalid:8265', tags: [arm64]}\n"
    )
    return str(path)


@pytest.fixture
def words(config: str) -> list[str]:
    return ["simulate", "--clusters", config, "--nodes", "big=2x{CPU:8}", "--nodes", "fast={CPU:8}@2"]


def data(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_table_on_stdout_and_messages_on_stderr(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--synthetic", SMALL]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0].split() == ["FIGURE", "VALUE"]
    assert any(line.startswith("  owner ann") for line in lines)
    assert any(line.startswith("use of fast") for line in lines)
    assert "60 items" in err
    assert "simulated in" not in out


def test_without_a_configuration_those_with_sizes_are_the_fleet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RMCS_HOME", str(tmp_path / "home"))
    for name in ("RMCS_CONFIG", "RMCS_CLUSTERS"):
        monkeypatch.delenv(name, raising=False)
    assert main(["simulate", "--synthetic", SMALL]) == 2
    assert "No clusters are configured" in capsys.readouterr().err
    (tmp_path / "sizes.yaml").write_text("clusters: {small: {nodes: '{CPU:2}'}}\n")
    words = ["simulate", "--fleet", "sizes.yaml", "--nodes", "big=2x{CPU:8}", "--nodes", "small={CPU:4}"]
    assert main([*words, "--synthetic", SMALL, "-o", "json"]) == 0
    reported = data(capsys)
    assert sorted(reported["clusters"]) == ["big", "small"]
    assert reported["items"]["succeeded"] == 60


def test_json_is_the_same_every_time(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--synthetic", SMALL, "--seed", "3", "-o", "json"]) == 0
    first = capsys.readouterr().out
    assert main([*words, "--synthetic", SMALL, "--seed", "3", "-o", "json"]) == 0
    assert capsys.readouterr().out == first
    assert json.loads(first)["items"]["succeeded"] == 60


def test_a_trace_gives_what_it_was_written_from(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.csv"
    assert main([*words, "--synthetic", SMALL, "--save-trace", str(trace), "-o", "json"]) == 0
    first = data(capsys)
    assert len(read_trace(trace)) == 60
    assert main([*words, "--trace", str(trace), "-o", "json"]) == 0
    assert data(capsys) == first


def test_policies_settings_and_fleets_side_by_side(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = tmp_path / "sizes.yaml"
    sizes.write_text("clusters: {big: {nodes: '{CPU:2}'}, fast: {nodes: '{CPU:2}'}}")
    runs = (
        "load: policy:load=1",
        "policy:round_robin",
        "one by one: set:execution_mode=serial",
        "small: nodes:big={CPU:4} nodes:fast={CPU:4}",
        f"tiny: fleet:{sizes}",
    )
    chosen = [word for run in runs for word in ("--compare", run)]
    assert main([*words, "--synthetic", "items=60 over=1min run=constant:60 sizes=1", *chosen, "-o", "json"]) == 0
    found = data(capsys)["runs"]
    assert list(found) == [
        "load",
        "policy:round_robin",
        "one by one",
        "small",
        "tiny",
    ]
    makespans = {label: run["makespan_s"] for label, run in found.items()}
    assert makespans["one by one"] > makespans["tiny"] > makespans["small"] > makespans["load"]
    assert main([*words, "--synthetic", SMALL, *chosen]) == 0
    assert capsys.readouterr().out.splitlines()[0].startswith("FIGURE")


def test_policy_and_set_change_the_run(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    figures = []
    for more in ([], ["--policy", "headroom"], ["--policy", "round_robin"], ["--set", "execution_mode=serial"]):
        assert main([*words, "--synthetic", SMALL + " sizes=1,4", *more, "-o", "json"]) == 0
        figures.append(json.dumps(data(capsys)["clusters"]))
    assert len(set(figures)) == 4


def test_settings_of_the_file_are_the_defaults(
    config: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """At a threshold of 0.5, only half of each cluster is used."""
    Path(config).write_text(Path(config).read_text().replace("resource_threshold: 1", "resource_threshold: 0.4"))
    heavy = "items=100 over=1s run=constant:60 sizes=1"
    assert main([*words, "--synthetic", heavy, "--set", "ageing_s=50", "-o", "json"]) == 0
    slow = data(capsys)["makespan_s"]
    assert main([*words, "--synthetic", heavy, "--set", "resource_threshold=1", "-o", "json"]) == 0
    assert slow > 1.5 * data(capsys)["makespan_s"]


def test_the_plot(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plot.html"
    assert main([*words, "--synthetic", SMALL, "--plot", str(path)]) == 0
    assert path.read_text().startswith("<!doctype html>")
    assert str(path) in capsys.readouterr().err


def test_the_history(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "history.jsonl"
    assert main([*words, "--synthetic", "items=3 over=1s run=constant:1", "--record", str(path)]) == 0
    kinds = [json.loads(line)["line"] for line in path.read_text().splitlines()]
    assert kinds.count("Began") == kinds.count("Over") == 3
    assert f"rmcs: wrote {path}; `rmcs replay {path}` replays it\n" in capsys.readouterr().err
    assert kinds[0] == "Setup"
    assert {"Fed", "Told", "Nodes"} <= set(kinds)
    capsys.readouterr()
    assert main(["replay", "-q", str(path)]) == 0
    assert "answers as recorded; 0 violations" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "output"),
    [
        ([], "give either --trace or --synthetic"),
        (["--synthetic", SMALL, "--trace", "x.csv"], "give either --trace or --synthetic"),
        (["--trace", "none.csv"], "The trace none.csv cannot be read"),
        (["--synthetic", "items=x"], "items=x is not a number"),
        (["--synthetic", SMALL, "--nodes", "big"], "--nodes 'big' is not NAME=VALUE"),
        (["--synthetic", SMALL, "--nodes", "bigg={CPU:1}"], "did you mean 'big'?"),
        (["--synthetic", SMALL, "--set", "ageing=3"], "unknown key (did you mean 'ageing_s'?)"),
        (["--synthetic", SMALL, "--set", "ageing_s=-3"], "--set: settings.ageing_s"),
        (["--synthetic", SMALL, "--policy", "luck"], "settings.weights names 'luck', but there is no such score"),
        (["--synthetic", SMALL, "--policy", "load=much"], "'much' is not a number"),
        (["--synthetic", SMALL, "--policy", "load", "--policy", "round_robin"], "round_robin cannot be combined"),
        (["--synthetic", SMALL, "--compare", "x: luck"], "'luck' is not valid"),
        (
            ["--synthetic", SMALL, "--compare", "x: policy:load", "--compare", "x: policy:headroom"],
            "have the same name",
        ),
        (["--synthetic", SMALL, "--compare", 'x: set:a="b'], "No closing quotation"),
        (["--synthetic", SMALL, "--compare", "x: policy:load", "--record", "h"], "leave --compare out"),
        (["--synthetic", SMALL, "--plot", "/no/such/folder/x.html"], "--plot: there is no folder /no/such/folder"),
    ],
)
def test_a_mistake_is_one_sentence_and_2(
    words: list[str], more: list[str], output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, *more]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert output in " ".join(err.replace("│", " ").split())
    assert "Traceback" not in err


def test_a_cluster_without_a_size(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--clusters", config, "--nodes", "big={CPU:1}", "--synthetic", SMALL]) == 2
    assert "cluster fast has no size" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--save-trace", "--record", "--plot"])
def test_an_existing_file_is_not_replaced(
    words: list[str], option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine"
    file.write_text("all my work")
    ask = [*words, "--synthetic", "items=3 over=1min run=constant:9", option, str(file)]
    assert main(ask) == 2
    assert f"{file} exists already.\nWhat to do: give another name, or --force" in capsys.readouterr().err
    assert file.read_text() == "all my work"
    assert main([*ask, "--force"]) == 0
    assert file.read_text() != "all my work"
    assert f"rmcs: wrote {file}" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--save-trace", "--record", "--plot"])
def test_only_a_file_is_ever_replaced(
    words: list[str], option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    link = tmp_path / "link"
    link.symlink_to("/dev/null")
    ask = [*words, "--synthetic", "items=3 over=1min run=constant:9", option, str(link), "--force"]
    assert main(ask) == 2
    assert f"{link} is not a regular file, and is not replaced." in capsys.readouterr().err


def test_one_is_one_item(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--nodes", "a={CPU:4}", "--synthetic", "items=1 over=1min run=constant:9"]) == 0
    out, err = capsys.readouterr()
    assert "; 1 item\n" in out.replace(" \n", "\n")
    assert err.startswith("rmcs: 1 item, 9.01 s, simulated in ")
