"""What is wrong with a file is reported line by line, each with its number, and nothing in it can forge a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.control_plane.config import load_config
from ray_multicluster_scheduler.control_plane.config.yaml_text import LineIndex, parse_with_lines, parse_yaml

GOOD = "  - name: good\n    dashboard: http://good:8265\n"


def refused(text: str, folder: Path, **environ: str) -> str:
    path = folder / "clusters.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        load_config(path, environ)
    assert caught.value.next_step
    return caught.value.message.replace(str(path), "FILE")


def test_each_mistake_has_its_own_line_in_their_order(tmp_path: Path) -> None:
    text = (
        "clusters:\n"  # 1
        "  - name: a\n"  # 2
        "    dashbord: http://h:1\n"  # 3
        "    head_address: h\n"  # 4
        "    runtime_env:\n"  # 5
        "      env_vars:\n"  # 6
        "        A: true\n"  # 7
        "  - weight: 2\n"  # 8
        "settings:\n"  # 9
        "  retry_backoff:\n"  # 10
        "    basis: 1\n"  # 11
    )
    first, *rest = refused(text, tmp_path).splitlines()
    assert first == "FILE: 5 things are wrong:"
    assert [line.split(":")[0].strip() for line in rest] == ["line 3", "line 4", "line 5", "line 8", "line 11"]
    assert rest[0] == "  line 3: cluster a, dashbord: unknown key (did you mean 'dashboard'?)"
    assert rest[3] == "  line 8: clusters[1], name: is missing"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"clusters:\n{GOOD}{GOOD}", "FILE, line 4: clusters: the name 'good' is given twice"),
        (f"clusters:\n{GOOD}  - x\n", "FILE, line 4: clusters[1]: expected a mapping, got text"),
        (f"clusters:\n{GOOD}\nsettings: 3\n", "FILE, line 5: settings: expected a mapping"),
        (f"clusters:\n{GOOD}setings: {{}}\n", "FILE, line 4: setings: unknown key (did you mean 'settings'?)"),
        (f"clusters:\n{GOOD}   tags: [x]\n", "FILE, line 4, column 4: this is not YAML: its indentation does not fit"),
        (
            f"clusters:\n{GOOD}    tags: 2026-13-01\n",
            "FILE, line 4, column 11: this is not YAML: the value is not what",
        ),
        (f"clusters:\n{GOOD}    tags: [\x07]\n", "FILE, line 4: this is not YAML: it holds characters"),
        (f"clusters:\n{GOOD}\ttags: [x]\n", "FILE, line 4, column 1: this is not YAML: a tab stands here; use spaces"),
        (
            "clusters:\n  - name: 'good\n    dashboard: http://good:8265\n",
            "FILE, line 2, column 11: this is not YAML: the quote that is opened here is never closed",
        ),
        (
            f"clusters:\n{GOOD}    tags: [x\n",
            "FILE, line 4, column 11: this is not YAML: the bracket that is opened here is never closed",
        ),
        (
            f"clusters:\n{GOOD}    tls: {{\n",
            "FILE, line 5, column 1: this is not YAML: a bracket or a brace is",
        ),
        (f"clusters:\n{GOOD}    tags: [x\n    weight: 1\n", "got ':', in what the bracket of line 4 opens"),
        (
            "clusters:\n  - name: 'a\n    dashboard: 'http://h:1'\n",
            "FILE, line 3, column 17: this is not YAML: this",
        ),
        ("clusters: " + "[" * 5000, "FILE: this is nested too deeply"),
        (f"settings: {{service_tls: {{cert: a, key: b, kye: c}}}}\nclusters:\n{GOOD}", "(did you mean 'key'?)"),
        (
            "clusters:\n  - name: no\n    dashboard: http://h:1\n",
            "line 2: clusters[0], name: expected a valid string, ",
        ),
        ("clusters:\n  - name: no\n    dashboard: http://h:1\n", "got False; quote it"),
    ],
)
def test_one_mistake_is_printed_after_the_name_of_the_file(text: str, words: str, tmp_path: Path) -> None:
    assert words in refused(text, tmp_path)


def test_a_key_that_is_given_twice_hides_nothing_else(tmp_path: Path) -> None:
    text = f"clusters:\n{GOOD}    weight: 1\n    weight: much\n    wight: 1\nsettings: {{retries: -1}}\n"
    first, *rest = refused(text, tmp_path).splitlines()
    assert first == "FILE: 4 things are wrong:"
    assert [line.split(",")[0] for line in rest] == [
        "  line 5: cluster good",
        "  line 5: the key 'weight' is given twice",
        "  line 6: cluster good",
        "  line 7: settings.retries: expected greater than or equal to 0",
    ]


def test_a_name_that_is_given_twice_is_reported_with_the_rest(tmp_path: Path) -> None:
    text = f"clusters:\n{GOOD}    wight: 1\n{GOOD}{GOOD}settings: {{retries: -1}}\n"
    first, *rest = refused(text, tmp_path).splitlines()
    assert first == "FILE: 4 things are wrong:"
    assert [line.strip().split(",")[0].split("'")[0] for line in rest] == [
        "line 4: cluster good",
        "line 5: clusters: the name ",
        "line 7: clusters: the name ",
        "line 9: settings.retries: expected greater than or equal to 0",
    ]


def test_a_key_that_is_given_twice_is_enough_to_be_refused(tmp_path: Path) -> None:
    text = f"clusters:\n{GOOD}    weight: 1\n    weight: 1\n"
    assert refused(text, tmp_path) == "FILE, line 5: the key 'weight' is given twice, first in line 4."
    assert "given twice" in refused(f"clusters: [1]\nclusters:\n{GOOD}setings: {{}}\n", tmp_path)
    assert "given twice" in refused("clusters: [1]\nclusters: [1]\n", tmp_path)
    with pytest.raises(ConfigurationError, match="it, line 1: the key 'a' is given twice, first in line 1"):
        parse_yaml("{a: 1, a: 2}", "it")


def test_what_an_alias_or_a_merge_brings_is_looked_for_where_it_stands() -> None:
    text = "a: &base\n  x: 1\n  y: 2\nb:\n  <<: *base\n  y: 3\nc: *base\n"
    _, lines = parse_with_lines(text, "it")
    assert [lines.line_of(path) for path in (("a", "y"), ("b", "x"), ("b", "y"), ("c", "x"))] == [3, 2, 6, 2]


def test_the_nearest_line_is_reported_for_what_is_missing() -> None:
    _, lines = parse_with_lines("a:\n- b\n- {c: 1}\n", "it")
    assert lines.line_of(("a", 1, "d", 4)) == 3
    assert lines.line_of(("z",)) is None
    assert LineIndex().line_of(("a",)) is None


def test_a_text_that_refers_to_itself_is_no_trouble() -> None:
    """Nor one whose aliases stand for more places than a machine could list."""
    _, lines = parse_with_lines("a: &a [*a]\n", "it")
    assert lines.line_of(("a", 0, 0, 0, 0)) == 1
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 40))
    _, lines = parse_with_lines(bomb, "it")
    assert lines.line_of(("a39", *[8] * 38, 0, 1)) == 1


def test_clusters_of_a_variable_have_lines_too() -> None:
    with pytest.raises(ConfigurationError, match="RMCS_CLUSTERS, line 2: clusters\\[1\\], name: is missing"):
        load_config(None, {"RMCS_CLUSTERS": "[{name: a, dashboard: 'http://h:1'},\n {dashboard: 'http://h:2'}]"})


def test_the_value_of_a_variable_has_no_line_of_the_file(tmp_path: Path) -> None:
    message = refused(f"settings: {{retries: 1}}\nclusters:\n{GOOD}", tmp_path, RMCS_RETRIES="many")
    assert message.startswith("FILE: environment variable RMCS_RETRIES: ")


@pytest.mark.parametrize("name", [r"a\nb", r"a\rb", r"\e[31mred", r"a\u202eb", r"a\0b", "a b", "ä", "", "x" * 64])
def test_a_name_with_control_characters_is_shown_spelt_out(name: str, tmp_path: Path) -> None:
    message = refused(f'clusters:\n  - name: "{name}"\n    dashboard: http://h:1\n', tmp_path)
    assert message.isprintable()
    assert "is not a valid name of a cluster: begin with a letter or a digit, then use letters, digits" in message
    assert "line 2" in message


def test_a_key_with_control_characters_is_spelt_out_as_well(tmp_path: Path) -> None:
    message = refused(f'clusters:\n{GOOD}    "x\\n  line 9": 1\n"\\e[2J": 2\n', tmp_path)
    assert message.isprintable()
    message = refused(f'clusters:\n{GOOD}    "x\\n  line 9": 1\n', tmp_path)
    assert message.isprintable()
    assert "x\\n  line 9: unknown key" in message


def test_many_mistakes_are_cut(tmp_path: Path) -> None:
    lines = refused("clusters:\n" + "  - {}\n" * 30, tmp_path).splitlines()
    assert lines[0] == "FILE: 30 things are wrong:"
    assert (len(lines), lines[-1]) == (22, "  and 10 more")


def test_plain_data_is_as_before() -> None:
    assert parse_yaml("", "it") is None
    assert parse_yaml("a: {b: [1, x]}", "it") == {"a": {"b": [1, "x"]}}
