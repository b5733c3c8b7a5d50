"""The documentation: the site builds offline without a warning, its settings load, its commands exist."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml

from ray_multicluster_scheduler import FleetConfig
from ray_multicluster_scheduler.common.model import ClusterMetadata
from ray_multicluster_scheduler.common.tables import decision_rows
from ray_multicluster_scheduler.control_plane.config import Settings, load_config
from ray_multicluster_scheduler.scheduler.cluster.cluster_state import ClusterState
from ray_multicluster_scheduler.scheduler.policy.policy_engine import PolicyEngine
from ray_multicluster_scheduler.simulation.fleet_file import load_fleet
from tests.support.command_check import check_command
from tests.support.docs_blocks import DOCS, ROOT, Block, blocks
from tests.unit.lifecycle.driver import snapshot, task
from tests.unit.policy.views import node, view

PAGES = [page for page in DOCS.rglob("*.md") if page.parent.name != "decisions"]
BLOCKS = [one for page in [ROOT / "README.md", *sorted(PAGES)] for one in blocks(page)]
LANGUAGES = {"", "sh", "python", "yaml", "javascript", "json", "csv"}


def name(block: Block) -> str:
    return f"{block.page}:{block.line}"


def commands(block: Block) -> list[list[str]]:
    """The arguments of each line that calls rmcs."""
    lines = block.code.replace("\\\n", " ").splitlines()
    parts = [part.strip() for line in lines for part in re.split(r"; (?=rmcs )", line)]
    words = [shlex.split(part, comments=True) for part in parts if part.startswith("rmcs ")]
    return [one[1:] for one in words]


COMMANDS = [(block, words) for block in BLOCKS if block.language == "sh" for words in commands(block)]


def test_every_code_block_has_a_known_language() -> None:
    assert {one.language for one in BLOCKS} <= LANGUAGES


@pytest.mark.parametrize("block", [one for one in BLOCKS if one.language == "yaml"], ids=name)
def test_a_configuration_loads(block: Block, tmp_path: Path) -> None:
    if block.page == "docs/simulation.md":
        (tmp_path / "fleet.yaml").write_text(block.code, encoding="utf-8")
        assert len(load_fleet(load_config(ROOT / "examples" / "clusters.yaml"), tmp_path / "fleet.yaml").clusters) == 2
        return
    found = yaml.safe_load(block.code)
    found.setdefault("clusters", [{"name": "mac", "dashboard": "http://127.0.0.1:8265"}])
    FleetConfig.model_validate(found)


@pytest.mark.parametrize(("block", "words"), COMMANDS, ids=[f"{name(one)}-{' '.join(w[:2])}" for one, w in COMMANDS])
def test_a_command_exists_and_takes_these_options(block: Block, words: list[str]) -> None:
    check_command(words)


def shape(page: str) -> list[object]:
    """Levels of headings, code without its comments, and where links lead: everything independent of the language."""
    text = (ROOT / page).read_text(encoding="utf-8")
    levels = re.findall(r"^(#+) ", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    code = [re.sub(r"\s+#.*", "", one.code) for one in blocks(ROOT / page)]
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if not link.startswith("README")]
    return [levels, code, links, text.count("\n|")]


def test_the_chinese_readme_has_the_same_structure() -> None:
    assert shape("README.zh-CN.md") == shape("README.md")


def test_times_on_the_failure_page_match_the_settings() -> None:
    text = (DOCS / "concepts" / "failure.md").read_text(encoding="utf-8")
    patterns = {
        "heartbeat_s": r"`heartbeat_s`, (\d+) s",
        "lost_after_s": r"`lost_after_s` \((\d+) s\)",
        "health_check_interval_s": r"\| (\d+) s \| `health_check_interval_s`",
        "snapshot_interval_s": r"\| (\d+) s \| `snapshot_interval_s`",
        "submission_interval_s": r"(\d+) s apart\n?\s*\(`submission_interval_s`\)",
    }
    for key, pattern in patterns.items():
        assert {float(one) for one in re.findall(pattern, text)} == {getattr(Settings(), key)}, key
    (silent,) = set(re.findall(r"three (?:missed )?heartbeats,? \(?(\d+) s", text))
    assert float(silent) == 3 * Settings().heartbeat_s


def test_states_on_the_failure_page_occur_in_that_order() -> None:
    """For a cluster that becomes silent for good while an item waits."""
    rows = re.findall(r"^\| .*", (DOCS / "concepts" / "failure.md").read_text(encoding="utf-8"), re.MULTILINE)
    table = rows[rows.index("| after | the state in `rmcs clusters` | effect |") + 1 :]
    documented = [code for row in table[:3] for code in re.findall(r"`([A-Z_]+)`", row.split(" | ")[1])]
    state = ClusterState(ClusterMetadata("mac", dashboard="http://mac:8265"), Settings())
    state.link_up("3.11.9", "2.60.0", 0.0)
    state.record_snapshot(snapshot("mac", 0.0, 8, source="agent"), 0.0)
    state.link_down(1.0)
    shown = [state.problem(2.0), state.problem(1.0 + Settings().lost_after_s)]
    state.link_closed()
    shown.append(state.problem(62.0))
    for _ in range(Settings().breaker_failures):
        state.breaker.record_failure(62.0, "with a task: contact with it was lost")
    shown.append(state.problem(62.0))
    assert [one.code for one in shown if one] == documented


def test_scores_on_the_placement_page_are_computed_scores() -> None:
    rows = re.findall(r"^\| .+? \| .* \| `(load \d.*)` \|$", placement_page(), re.MULTILINE)
    total = {"CPU": 4.0, "memory": 2.4 * 1024**3}
    fleet = [view(f"c{free}", node(total, {**total, "CPU": free})) for free in (4.0, 2.0, 0.0)]
    decision = PolicyEngine(Settings(resource_threshold=1)).schedule(task("t", cpus=0), fleet, 0.0)
    assert [line.scores for line in decision_rows(decision)] == rows
    assert decision.cluster == "c4.0", "higher is better"
    assert f"`{decision.sentence.partition(': ')[2].partition(';')[0]}`" in placement_page()


def placement_page() -> str:
    return (DOCS / "concepts" / "placement.md").read_text(encoding="utf-8")


def test_examples_read_the_token_from_the_state_folder() -> None:
    """Examples work as pasted, also with another RMCS_HOME, and use only variables that they set."""
    for block in (one for one in BLOCKS if one.language == "sh"):
        assert not re.search(r"~/\.rmcs[/ ]", block.code), name(block)
        assert '"$AUTH"' not in block.code or "AUTH=" in block.code, name(block)


def test_the_first_command_of_the_service_page_needs_no_file() -> None:
    """After the README, RMCS_CONFIG is exported and the folder has no configuration file."""
    first = next(blocks(DOCS / "start" / "service.md"))
    assert first.code == "rmcs up\n"


def links(page: Path) -> list[str]:
    """Links to other files, without their anchors."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)


READ = [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), ROOT / "ray_multicluster_scheduler" / "cli" / "troubleshooting.md"]


@pytest.mark.parametrize("page", READ, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve_in_the_source_tree(page: Path) -> None:
    """As a code host or an editor resolves them."""
    assert [one for one in links(page) if not (page.parent / one).exists()] == []


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_front_pages_link_to_operations_guides(page: str) -> None:
    found = {Path(one).name for one in links(ROOT / page)}
    assert {"monitor.md", "back-up.md", "upgrade.md", "add-a-cluster.md"} <= found


def test_links_are_found_in_the_pages() -> None:
    assert sum(len(links(page)) for page in READ) > 100


@pytest.mark.parametrize("page", sorted((DOCS / "reference").glob("*.md")), ids=lambda page: page.stem)
def test_a_generated_page_has_a_placeholder_with_instructions(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "`make docs`" in text
    assert "Without" in text
    assert f"site/reference/{page.stem}.html" in text


def dead_ends(site: Path) -> list[str]:
    """Links that leave the site, or lead nowhere in it. MkDocs does not check those that leave docs/."""
    found = []
    for page in sorted(site.rglob("*.html")):
        if page.name == "404.html":  # served at any address, its links begin at the root
            continue
        for link in re.findall(r'(?:href|src)="([^"#?:]+)[^":]*"', page.read_text(encoding="utf-8")):
            target = (page.parent / unquote(link)).resolve()
            if not (target.exists() and target.is_relative_to(site.resolve())):
                found.append(f"{page.relative_to(site)} -> {link}")
    return found


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """MkDocs checks links, anchors and the reference; `strict` makes each warning an error."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "https_proxy": "http://127.0.0.1:9"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    python = (tmp_path / "site" / "reference" / "python.html").read_text(encoding="utf-8")
    assert "submit_task" in python
    for page in ("commands", "configuration", "items", "rest", "python"):
        text = (tmp_path / "site" / "reference" / f"{page}.html").read_text(encoding="utf-8")
        assert "make docs" not in text, "the placeholder"
    configuration = (tmp_path / "site" / "reference" / "configuration.html").read_text(encoding="utf-8")
    assert 'id="tracing"' in configuration
    assert "only the former takes no jobs" in configuration
    explained = (tmp_path / "site" / "troubleshooting.html").read_text(encoding="utf-8")
    assert 'id="no_carrier"' in explained
    assert 'href="concepts/failure.html"' in explained
    assert dead_ends(tmp_path / "site") == []
    front = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    loaded = re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(https?://[^"]+)"', front)
    assert loaded == [], "a page loads something from elsewhere"


def test_files_named_by_how_it_works_exist() -> None:
    """The walks name files by their last part or by their path in the package."""
    package = ROOT / "ray_multicluster_scheduler"
    files = ["/" + path.relative_to(package).as_posix() for path in package.rglob("*.py")]
    named = set(re.findall(r"`([\w/]+\.py)`", (DOCS / "how-it-works.md").read_text(encoding="utf-8")))
    assert len(named) > 50
    assert [name for name in sorted(named) if not any(file.endswith("/" + name) for file in files)] == []
