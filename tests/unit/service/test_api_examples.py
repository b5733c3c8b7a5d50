"""Every example of docs/api.md does what is written there, against a real service that asks for tokens."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.docs_blocks import prints
from tests.unit.client_api.control_plane import until
from tests.unit.service.api_examples import Example, check_tools, environment, examples
from tests.unit.service.http_service import HttpService

EXAMPLES = examples()
FOLLOWERS = [one for one in EXAMPLES if one.language == "javascript" and "async function follow" in one.code]


def name(one: Example) -> str:
    return f"{one.language}-line-{one.line}"


class Reader:
    """Runs the examples in their order: later ones ask for what earlier ones have submitted."""

    def __init__(self, service: HttpService, folder: Path) -> None:
        self.env = environment(service.address, service.token, folder / "home")
        self._folder, self._printed = folder, list[str]()

    def printed(self, example: Example) -> str:
        at = EXAMPLES.index(example)
        for one in EXAMPLES[len(self._printed) : at + 1]:
            self._printed.append(one.run(self._folder, self.env))
        return self._printed[at]


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    check_tools()
    folder = tmp_path_factory.mktemp("api")
    with HttpService(folder / "state", works=True, auth="token") as service:
        yield Reader(service, folder)


def test_each_language_has_examples() -> None:
    assert {one.language for one in EXAMPLES} == {"sh", "python", "javascript"}
    assert len(FOLLOWERS) == 2, "one with EventSource, one with WebSocket"


@pytest.mark.parametrize("example", EXAMPLES, ids=name)
def test_an_example_prints_what_is_shown(example: Example, reader: Reader) -> None:
    printed = reader.printed(example)
    assert prints(example.shown, printed), f"shown:\n{example.shown}\nprinted:\n{printed}"


@pytest.mark.parametrize(("shown", "printed", "right"), [
    ("a…c", "abc\n", True),
    ("a\n…c\n", "a\nb\nc\nd", True),
    ("a\nc", "a\nb\nc", False),
    ("(…)", "()", True),
    ("", "anything", True),
])  # fmt: skip
def test_what_is_shown_is_compared_with_what_is_printed(shown: str, printed: str, right: bool) -> None:
    assert prints(shown, printed) is right


@pytest.mark.parametrize("follower", FOLLOWERS, ids=name)
def test_a_page_goes_on_after_a_restart_of_the_service_where_it_was(follower: Example, tmp_path: Path) -> None:
    """Each change is reported once, whether it came before, during or after."""
    check_tools()
    with HttpService(tmp_path / "state", works=True, auth="token") as service:
        env = environment(service.address, service.token, tmp_path / "home")
        service.post("/api/v1/queue/cluster/mac/pause", {"reason": "until the page looks"})
        task = {"id": "weekly", "kind": "job", "name": "weekly", "job": {"entrypoint": "python report.py"}}
        service.post("/api/v1/items", {"task": task})
        until(lambda: service.get("/api/v1/items/weekly")["state"] == "QUEUED")
        followed = replace(follower, code=follower.code.replace("nightly-1", "weekly"))
        output = tmp_path / "said"
        with output.open("w") as out, subprocess.Popen(followed.command(tmp_path), env=env, stdout=out) as page:
            try:
                until(lambda: "QUEUED" in output.read_text())
                service.restart()
                service.post("/api/v1/queue/cluster/mac/resume")
                assert page.wait(60) == 0
            finally:
                page.kill()
        states = output.read_text().split()
    assert states[0] == "PENDING"
    assert states[-3:] == ["DISPATCHING", "RUNNING", "SUCCEEDED"]
    assert states.count("PENDING") == states.count("SUCCEEDED") == 1
