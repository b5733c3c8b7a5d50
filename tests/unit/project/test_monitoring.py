"""The rules and dashboard of examples/monitoring: their metrics exist, and Prometheus evaluates them as expected."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.command_check import check_command
from tests.support.docs_blocks import ROOT
from tests.support.promtool import promtool
from tests.support.serving_instances import StubInstance
from tests.unit.client_api.control_plane import until
from tests.unit.service.http_service import HttpService
from tests.unit.service.service_plane import running

EXAMPLES = ROOT / "examples" / "monitoring"
TESTS = ROOT / "tests" / "monitoring" / "alerts_test.yaml"
RULES: list[dict[str, Any]] = yaml.safe_load((EXAMPLES / "alerts.yaml").read_text())["groups"][0]["rules"]
DASHBOARD: dict[str, Any] = json.loads((EXAMPLES / "grafana-dashboard.json").read_text())
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def names(expressions: list[str]) -> set[str]:
    return {name for one in expressions for name in re.findall(r"\brmcs_\w+", one)}


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names of all metrics of a service with some activity."""
    tracing = {"endpoint": "http://127.0.0.1:1"}  # an unreachable endpoint, so that failures are counted too
    with HttpService(tmp_path_factory.mktemp("state"), submission_interval_s=0, tracing=tracing) as service:
        assert service.ask("PUT", "/api/v1/pools/train", {"quota": {"CPU": 2}})[0] == 200
        service.submit("t")
        item = service.plane.runtime.item("t")
        assert item is not None
        running(item)
        until(lambda: b"rmcs_schedule_success_ratio" in service.get("/metrics"))
        with StubInstance() as stub:
            service.post("/api/v1/serving/ti/register", {"host": "127.0.0.1", "port": stub.port})
            for _ in range(2):  # the first one has no prediction
                service.post("/api/v1/serving/queue/submit", {"model_name": stub.model, "task_input": 1})
                until(lambda: service.get("/api/v1/serving/queue/info")["queues"][0]["length"] == 0)
            until(lambda: b"rmcs_serving_p90_coverage" in service.get("/metrics"))
        text = service.get("/metrics").decode()
    return set(re.findall(r"^(rmcs_\w+)", text, re.MULTILINE))


def test_every_queried_metric_exists(exposed: set[str]) -> None:
    assert names([rule["expr"] for rule in RULES] + QUERIES) <= exposed


def test_the_dashboard_shows_every_metric(exposed: set[str]) -> None:
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in exposed} - {"rmcs_build_info"}
    assert families <= {re.sub(r"_bucket$", "", name) for name in names(QUERIES)}


def test_prometheus_accepts_the_rules() -> None:
    done = promtool("check", "rules", EXAMPLES / "alerts.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    done = promtool("check", "config", "--syntax-only", EXAMPLES / "prometheus.yml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_fire_exactly_as_expected() -> None:
    done = promtool("test", "rules", TESTS)
    assert done.returncode == 0, done.stdout + done.stderr


def never(rule: dict[str, Any]) -> None:
    rule["expr"] = "vector(0) > 1"


def other_number(rule: dict[str, Any]) -> None:
    """Change the first number of a comparison."""
    rule["expr"], changed = re.subn(r"([<>=]=?) ([0-9.e]+)", r"\1 77e30", rule["expr"], count=1)
    assert changed


def other_way_round(rule: dict[str, Any]) -> None:
    turned = {">": "<=", "<": ">=", "==": "!="}
    rule["expr"], changed = re.subn(r"(==|[<>]) (?=[0-9])", lambda found: f"{turned[found[1]]} ", rule["expr"], count=1)
    assert changed


def at_once(rule: dict[str, Any]) -> None:
    rule["for"] = "0m"


def much_later(rule: dict[str, Any]) -> None:
    rule["for"] = f"{10 * int(rule['for'].removesuffix('m'))}m"


CHANGES = [
    pytest.param(rule["alert"], change, id=f"{rule['alert']}-{change.__name__}")
    for rule in RULES
    for change in (never, other_number, other_way_round, *((at_once, much_later) if "for" in rule else ()))
]


@pytest.mark.parametrize(("alert", "change"), CHANGES)
def test_a_changed_rule_is_detected(alert: str, change: Callable[[dict[str, Any]], None], tmp_path: Path) -> None:
    rules = yaml.safe_load((EXAMPLES / "alerts.yaml").read_text())
    for rule in rules["groups"][0]["rules"]:
        if rule["alert"] == alert:
            change(rule)
    tests = yaml.safe_load(TESTS.read_text())
    tests["rule_files"] = ["alerts.yaml"]
    (tmp_path / "alerts.yaml").write_text(yaml.safe_dump(rules))
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(tests))
    done = promtool("test", "rules", tmp_path / "tests.yaml")
    assert done.returncode != 0
    assert alert in done.stdout + done.stderr


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_an_alert_has_a_problem_and_a_next_step(rule: dict[str, Any]) -> None:
    assert set(rule["annotations"]) == {"summary", "what_to_do"}
    assert rule["labels"]["severity"] in ("page", "warn")
    for typed in re.findall(r"`rmcs ([^`]+)`", rule["annotations"]["what_to_do"]):
        check_command(typed.replace("{{ $labels.cluster }}", "mac").split())


def test_prometheus_accepts_the_dashboard_queries(tmp_path: Path) -> None:
    plain = [one.replace("$__rate_interval", "5m").replace("$instance", ".*") for one in QUERIES]
    assert not [one for one in plain if "$" in one]
    rules = [{"record": f"panel:{number}", "expr": one} for number, one in enumerate(plain)]
    (tmp_path / "panels.yaml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = promtool("check", "rules", tmp_path / "panels.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_panels_do_not_overlap() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["title"]
        assert panel["description"]
