"""Where the configuration is found, and what is reported when it is wrong."""

from __future__ import annotations

import json
import os
import re
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.control_plane.config import ClusterConfig, FleetConfig, Settings, load_config
from ray_multicluster_scheduler.control_plane.config.settings import Preemption

EXAMPLE = Path(__file__).parents[3] / "examples" / "clusters.yaml"
ONE = "clusters: [{name: %s, dashboard: 'http://h:8265'}]"


def write(folder: Path, name: str = "a", *, text: str | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "clusters.yaml"
    path.write_text(text if text is not None else ONE % name)
    return path


def load(text: str, folder: Path, **environ: str) -> FleetConfig:
    return load_config(write(folder, text=text), environ=environ)


def complaint(text: str, folder: Path, **environ: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load(text, folder, **environ)
    assert caught.value.__cause__ is None, "no traceback of a library behind it"
    assert caught.value.next_step
    return caught.value.message


def test_the_shipped_example() -> None:
    fleet = load_config(EXAMPLE, environ={})
    centos, mac = fleet.clusters
    assert (centos.name, centos.dashboard, centos.weight) == ("centos", "http://192.168.5.7:31591", 1.0)
    assert centos.runtime_env == {
        "conda": "ts",
        "working_dir": str(EXAMPLE.parent),
        "excludes": ["*.pkl"],
        "env_vars": {"PYTHONPATH": "/home/alice/a:/home/alice/b"},
    }
    assert centos.resolve_token({"CENTOS_TOKEN": "t"}) == "t"
    assert (mac.head_address, mac.prefer, mac.weight, mac.tags) == ("192.168.5.2:32546", True, 1.2, ("macos", "arm64"))
    assert (centos.home_dir, mac.home_dir) == ("/home/alice", "/Users/alice")
    assert fleet.settings == Settings()


def test_its_settings_are_all_there_are_and_as_they_are_by_default(tmp_path: Path) -> None:
    """They are commented out; who takes that away changes nothing, and finds every name."""
    lines = EXAMPLE.read_text(encoding="utf-8").splitlines()
    at = lines.index("# settings:")
    section = list(takewhile(lambda line: line.startswith("#"), lines[at:]))
    text = "\n".join([*lines[:at], *(line.removeprefix("# ") for line in section), *lines[at + len(section) :]])
    settings = load(text, tmp_path).settings
    assert (settings, settings.model_fields_set) == (Settings(), set(Settings.model_fields))
    assert [line for line in section[1:] if not re.match(r"#   \w+: .+ # .+", line)] == [], "no words about it"


def test_search_order(tmp_path: Path) -> None:
    """Each place wins over those after it: they are taken away one by one."""
    here, home = tmp_path / "here", tmp_path / "home"
    argument = write(tmp_path / "argument", "argument")
    named = write(tmp_path / "named", "named")
    local, at_home = write(here, "local"), write(home, "home")
    environ = {"RMCS_CONFIG": str(named), "RMCS_CLUSTERS": ONE % "text", "RMCS_HOME": str(home)}

    assert load_config(argument, environ, here).names == ("argument",)
    assert load_config(None, environ, here).names == ("named",)
    del environ["RMCS_CONFIG"]
    assert load_config(None, environ, here).names == ("text",)
    del environ["RMCS_CLUSTERS"]
    assert load_config(None, environ, here).names == ("local",)
    local.unlink()
    assert load_config(None, environ, here).names == ("home",)
    at_home.unlink()
    with pytest.raises(ConfigurationError) as caught:
        load_config(None, environ, here)
    assert "rmcs fleet up" in (caught.value.next_step or "")
    assert "examples/" not in (caught.value.next_step or ""), "not everybody has them"
    written = (caught.value.next_step or "").split("`")[1]
    assert load(written, tmp_path / "written").names == ("mac",)
    for place in ("RMCS_CONFIG", "RMCS_CLUSTERS", str(local), str(at_home), "/etc/rmcs/clusters.yaml"):
        assert place in caught.value.message


def test_relative_path_starts_at_the_current_folder(tmp_path: Path) -> None:
    write(tmp_path / "conf")
    assert load_config("conf/clusters.yaml", {}, tmp_path).base_dir == tmp_path / "conf"
    assert load_config(None, {"RMCS_CONFIG": "conf/clusters.yaml"}, tmp_path).names == ("a",)


def test_clusters_in_the_environment_as_json_list(tmp_path: Path) -> None:
    rows = [{"name": "a", "dashboard": "http://h:1", "runtime_env": {"working_dir": "src"}}]
    fleet = load_config(None, {"RMCS_CLUSTERS": json.dumps(rows)}, tmp_path)
    assert fleet.clusters[0].runtime_env["working_dir"] == str(tmp_path / "src")


def test_list_of_clusters_and_ready_fleet(tmp_path: Path) -> None:
    fleet = load_config(
        [ClusterConfig(name="a", head_address="h:1"), {"name": "b", "head_address": "h:2"}], {}, tmp_path
    )
    assert fleet.names == ("a", "b")
    assert load_config(fleet, {"RMCS_RETRIES": "5"}) is fleet
    assert fleet.cluster("b").head_address == "h:2"
    with pytest.raises(ConfigurationError, match=r"no cluster 'bb' .*did you mean 'b'"):
        fleet.cluster("bb")


def test_paths_in_the_file_are_relative_to_the_file(tmp_path: Path) -> None:
    text = """
clusters:
  - name: a
    dashboard: https://h:1
    auth_token_path: token
    tls: {ca: ca.pem}
    runtime_env: {working_dir: ../src, py_modules: [lib, 's3://b/x.zip']}
"""
    cluster = load(text, tmp_path / "conf").clusters[0]
    assert cluster.runtime_env["working_dir"] == str(tmp_path / "src")
    assert cluster.runtime_env["py_modules"] == [str(tmp_path / "conf" / "lib"), "s3://b/x.zip"]
    assert cluster.auth_token_path == str(tmp_path / "conf" / "token")
    assert cluster.tls.ca == str(tmp_path / "conf" / "ca.pem")


def test_settings_of_the_environment_override_the_file(tmp_path: Path) -> None:
    text = "settings: {retries: 1, combine: chain}\n" + ONE % "a"
    settings = load(
        text,
        tmp_path,
        RMCS_RETRIES="2",
        RMCS_RESOURCE_THRESHOLD="0.9",
        RMCS_RETRY_BACKOFF='{"base_s": 3}',
        RMCS_SUBMISSION_INTERVAL_KINDS='["task", "job"]',
        RMCS_AGENT_LISTEN="127.0.0.1:0",
        RMCS_EXECUTION_MODE="serial",
    ).settings
    assert settings.retries == 2
    assert settings.combine == "chain"
    assert settings.resource_threshold.gpu == 0.9
    assert settings.retry_backoff.base_s == 3
    assert settings.submission_interval_kinds == {"task", "job"}
    assert settings.agent_listen == "127.0.0.1:0"
    assert settings.execution_mode == "serial"


def test_presets_of_preemption(tmp_path: Path) -> None:
    text = "settings: {preemption: {preset: '%s'}}\n" + ONE % "a"
    assert load(text.replace("%s", "low", 1), tmp_path).settings.preemption.preset == "low"
    from_environment = text.replace("%s", "env:PREEMPT", 1)
    assert load(from_environment, tmp_path, PREEMPT="high").settings.preemption.preset == "high"
    named = FleetConfig(clusters=(ClusterConfig(name="a", dashboard="http://h:1"),))
    named = named.model_copy(update={"settings": Settings(preemption=Preemption(preset="env:PREEMPT"))})
    assert load_config(named, {"PREEMPT": "medium"}).settings.preemption.preset == "medium"
    for value, message in (({}, "PREEMPT is not set"), ({"PREEMPT": "lo"}, "PREEMPT is 'lo'")):
        with pytest.raises(ConfigurationError, match=message) as raised:
            load(from_environment, tmp_path, **value)
        assert "high or medium or low" in str(raised.value)
    with pytest.raises(ConfigurationError, match="preemption.preset"):
        load(text.replace("%s", "lo", 1), tmp_path)


def test_our_other_variables_do_not_disturb(tmp_path: Path) -> None:
    others = ("HOME", "ADDRESS", "CLUSTER", "TASK_ID", "ATTEMPT", "FENCE", "RAY_PYTHON", "SOMETHING_ELSE")
    fleet = load_config(write(tmp_path), {f"RMCS_{name}": "x" for name in others})
    assert fleet.settings == Settings()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["is empty", "settings, clusters, pools"]),
        ("# nothing\n", ["is empty"]),
        ("- name: a", ["holds a list at its top level"]),
        ("just words", ["holds text at its top level"]),
        ("clusters:\n", ["clusters is missing or empty"]),
        ("settings: {}\n", ["clusters is missing or empty"]),
        ("clusters: []\n", ["the list is empty"]),
        ("clusters: {name: a}\n", ["clusters holds a mapping", "expected a list"]),
        ("clusters: [a]\n", ["clusters[0]: expected a mapping, got text"]),
        ("cluster: []\n", ["line 1: cluster: unknown key", "did you mean 'clusters'?"]),
        (
            "clusters: [{name: a, head_address: 'h:1', auth_token_file: /x}]",
            ["cluster a, auth_token_file", "did you mean 'auth_token_path'?"],
        ),
        (
            "clusters: [{name: a, head_address: 'h:460110'}]",
            ["from 1 to 65535, got 'h:460110', where it is 460110"],
        ),
        ("clusters: [{name: a, dashboard: 'http://h:460110'}]", ["https://host:port with a port from 1 to 65535, got"]),
        ("settings: [1]\n" + ONE % "a", ["settings: expected a mapping, got a list"]),
        ("clusters:\n  - name: a\n   dashboard: x\n", ["line 3, column 4", "not YAML"]),
        ("clusters: [\x00]", ["not YAML"]),
        ("clusters: []\nclusters: []\n", ["line 2: the key 'clusters' is given twice, first in line 1"]),
        ("retries: 1\n" + ONE % "a", ["line 1: retries: unknown key; it belongs under settings"]),
        ("dashboard: x\n" + ONE % "a", ["line 1: dashboard: unknown key; it belongs to an entry of clusters"]),
        ("retrys: 1\n" + ONE % "a", ["retrys: unknown key (did you mean 'retries', under settings?)"]),
        ("flavour: 1\n" + ONE % "a", ["flavour: unknown key; known keys are settings, clusters"]),
        (
            "clusters: [{name: a, head_address: 'h:1', agent_listen: auto}]",
            ["cluster a, agent_listen: unknown key; it belongs under settings"],
        ),
        ("settings: {max_node: {}}\n" + ONE % "a", ["max_node: unknown key; it belongs to an entry of clusters"]),
        ("settings: {queue_size: 9}\n" + ONE % "a", ["queue_size: unknown key; known keys like it are max_queue."]),
        ("settings: {flavour: 9}\n" + ONE % "a", ["settings.flavour: unknown key."]),
        ("clusters: [{name: a, head_address: 'h:1', wieght: 2}]", ["cluster a, wieght", "did you mean 'weight'?"]),
        ("clusters: [{head_address: 'h:1'}]", ["clusters[0], name: is missing"]),
        ("clusters: [{name: a}]", ["cluster a", "neither head_address nor dashboard"]),
        ("clusters: [{name: a, head_address: h}]", ["cluster a, head_address", "expected host:port", "'h'"]),
        ("clusters: [{name: a, head_address: 'h:1', weight: much}]", ["cluster a, weight", "valid number", "'much'"]),
        ("clusters: [{name: a, head_address: 'h:1', runtime_env: }]", ["cluster a, runtime_env: is empty"]),
        (
            "clusters: [{name: a, head_address: 'h:1', tls: {cert: x}}]",
            ["cluster a, tls.cert: unknown key", "ca, verify"],
        ),
        (
            "clusters: [{name: a, head_address: 'h:1'}, {name: a, head_address: 'h:2'}]",
            ["the name 'a' is given twice"],
        ),
        ("settings: {retrys: 1}\n" + ONE % "a", ["settings.retrys: unknown key", "did you mean 'retries'?"]),
        ("settings: {lost_after_s: 46}\n" + ONE % "a", ["settings", "at least 10 s longer than lease_s"]),
        (
            "settings: {heartbeat_s: 10, lease_s: 29}\n" + ONE % "a",
            ["settings", "lease_s (29) must be at least three times heartbeat_s (10)"],
        ),
        (
            "settings: {owners: {ann: {weigth: 2}}}\n" + ONE % "a",
            ["settings.owners.ann.weigth", "did you mean 'weight'?"],
        ),
        (
            "settings: {owners: {ann: {weight: 0}}}\n" + ONE % "a",
            ["settings.owners.ann.weight", "greater than or equal to"],
        ),
        ("settings: {owners: {ann: {max_queued: -1}}}\n" + ONE % "a", ["settings.owners.ann.max_queued", "-1"]),
        (
            "settings: {owners: {ann: {max_running: 1000000001, max_priority: 1000001}}}\n" + ONE % "a",
            ["owners.ann.max_running", "or equal to 1000000000", "owners.ann.max_priority", "or equal to 1000000"],
        ),
        (
            "settings: {policies: {mine: my.module}}\n" + ONE % "a",
            ["settings.policies.mine: expected package.module:attribute, got 'my.module'"],
        ),
        ("settings: {policies: {mine: 7}}\n" + ONE % "a", ["settings.policies.mine", "valid string"]),
        ("settings: {combine: mix}\n" + ONE % "a", ["settings.combine", "'weighted' or 'chain'", "'mix'"]),
    ],
)
def test_wrong_files_get_a_sentence(text: str, words: list[str], tmp_path: Path) -> None:
    message = complaint(text, tmp_path)
    assert str(tmp_path / "clusters.yaml") in message
    for word in words:
        assert word in message


@pytest.mark.parametrize("text", ["", "flavour: 1\n", "clusters: [{}]", "clusters: [1]", "settings: {flavour: 1}"])
def test_the_next_step_names_what_all_have(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(text, tmp_path)
    assert caught.value.next_step == "correct it; `rmcs explain CONFIGURATION` names every key"


def test_wrong_variable_is_named_instead_of_a_key(tmp_path: Path) -> None:
    assert "environment variable RMCS_RETRIES" in complaint(ONE % "a", tmp_path, RMCS_RETRIES="many")
    message = complaint(ONE % "a", tmp_path, RMCS_RETRY_BACKOFF='{"basis": 1}')
    assert "environment variable RMCS_RETRY_BACKOFF, basis: unknown key" in message


def test_several_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    message = complaint("clusters: [{name: a, head_address: h, weight: -1}]", tmp_path)
    assert "head_address" in message
    assert "weight" in message


@pytest.mark.parametrize(
    "row", ["{name: a, head_address: 'h:1', auth_token: 987654}", "{name: a, head_address: h, auth_token: '987654'}"]
)
def test_a_token_never_shows_up_in_a_complaint(row: str, tmp_path: Path) -> None:
    assert "987654" not in complaint(f"clusters: [{row}]", tmp_path)


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"missing\.yaml cannot be read: No such file"):
        load_config(tmp_path / "missing.yaml", {})
    with pytest.raises(ConfigurationError, match="cannot be read: Is a directory"):
        load_config(tmp_path, {})
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigurationError, match="not text in UTF-8"):
        load_config(binary, {})
    with pytest.raises(ConfigurationError, match="named by RMCS_CONFIG"):
        load_config(None, {"RMCS_CONFIG": str(tmp_path / "missing.yaml")})


def test_file_without_permission(tmp_path: Path) -> None:
    path = write(tmp_path)
    path.chmod(0)
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)  # root may read everything; nobody may not
    try:
        with pytest.raises(ConfigurationError, match="Permission denied"):
            load_config(path, {})
    finally:
        os.seteuid(before)


@pytest.mark.parametrize("argument", [7, {"clusters": []}, b"x"])
def test_wrong_argument(argument: Any) -> None:
    with pytest.raises(ConfigurationError, match="configuration is of type"):
        load_config(argument, {})


def test_fleet_is_frozen(tmp_path: Path) -> None:
    fleet = load_config(write(tmp_path), {})
    with pytest.raises(ValueError, match="frozen"):
        fleet.clusters[0].weight = 3
