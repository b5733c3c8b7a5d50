"""The Tab key, in a bash with the script that `rmcs --install-completion` writes: live, quick, and never a word too
many."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ray_multicluster_scheduler.cli.arguments import completion
from ray_multicluster_scheduler.cli.arguments.selectors import KINDS, STATES
from ray_multicluster_scheduler.cli.commands import events, token
from ray_multicluster_scheduler.common.model import TaskState, item_fields
from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import Role
from ray_multicluster_scheduler.scheduler.scheduler_core.events import event
from tests.unit.client_api.control_plane import until
from tests.unit.service.http_service import HttpService

ROOT = Path(__file__).resolve().parents[3]
Offer = Callable[..., list[str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With an `rmcs` in it, and what a shell reads to complete it."""
    folder = tmp_path_factory.mktemp("bin")
    program = folder / "rmcs"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ray_multicluster_scheduler "$@"\n')
    program.chmod(0o755)
    for shell in ("bash", "zsh"):
        asked = {**os.environ, "_RMCS_COMPLETE": f"source_{shell}"}
        script = subprocess.run([program], cwd=ROOT, env=asked, capture_output=True, text=True, check=True).stdout
        (folder / f"completion.{shell}").write_text(script)
    return folder


@pytest.fixture
def offered(folder: Path) -> Offer:
    """Words as bash splits them; the last one is where the cursor is."""

    def tab(*words: str, **environ: str) -> list[str]:
        script = (
            f'source {folder}/completion.bash; shift; COMP_WORDS=(rmcs "$@"); COMP_CWORD=$#; '
            '_rmcs_completion rmcs; printf "%s\\n" "${COMPREPLY[@]}"'
        )
        known = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", **environ}
        done = subprocess.run(
            ["bash", "--norc", "-c", script, "bash", "rmcs", *words],
            cwd=ROOT,
            env=known,
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stderr) == (0, ""), "nothing is written between what a person types"
        return done.stdout.split()

    return tab


def test_commands_and_live_ids(service: HttpService, offered: Offer) -> None:
    service.submit("alpha-1")
    service.submit("beta-1")
    until(lambda: service.get("/api/v1/items/beta-1")["state"] == "RUNNING")
    assert offered("tas") == ["task"]
    assert offered("task", "show", "al") == ["alpha-1"]
    assert offered("task", "cancel", "") == ["last", "all", "beta-1", "alpha-1"]
    assert offered("task", "cancel", "alpha-1", "be") == ["beta-1"]
    assert offered("explain", "be") == ["beta-1"]


def test_names_of_clusters_also_behind_an_equals_sign(service: HttpService, offered: Offer) -> None:
    assert offered("clusters", "drain", "m") == ["mac"]
    assert offered("queue", "pause", "--cluster", "m") == ["mac"]
    assert offered("queue", "pause", "--cluster", "=", "m") == ["mac"], "--cluster=m, as bash takes it apart"
    assert offered("queue", "pause", "--cluster", "=") == ["mac"]
    assert offered("queue", "pause", "--cluster", "=", "mac", "--rea") == ["--reason"]


def test_owners_and_tokens(service: HttpService, offered: Offer) -> None:
    service.submit("t1", owner="ann")
    service.token_for("bob", Role.VIEWER, note="of a $(dashboard)")
    until(lambda: any(row["owner"] == "ann" for row in service.get("/api/v1/owners")["owners"]))
    assert offered("owner", "show", "an") == ["ann"]
    assert offered("owner", "set", "an") == ["ann"]
    for words in (["task", "list"], ["queue"], ["queue", "pause"], ["queue", "resume"], ["events"]):
        assert offered(*words, "--owner", "an") == ["ann"]
    ids = [row["id"] for row in service.get("/api/v1/tokens")["tokens"]]
    assert offered("token", "revoke", "") == ids
    assert offered("token", "revoke", ids[1]) == [ids[1]]


def test_fixed_words_are_completed(offered: Offer, tmp_path: Path) -> None:
    unavailable = {"RMCS_HOME": str(tmp_path)}
    assert offered("explain", "NO_CAR", **unavailable) == ["NO_CARRIER"]
    assert offered("task", "list", "--state", "R", **unavailable) == ["RUNNING", "RETRYING"]
    assert offered("events", "--kind", "g", **unavailable) == ["gang"]
    assert offered("events", "--types", "t", **unavailable) == ["transition", "telemetry"]
    assert offered("config", "log-level", "d", **unavailable) == ["debug"]
    assert offered("task", "list", "-o", "j", **unavailable) == ["json"]


def test_the_states_are_all_that_there_are() -> None:
    assert sorted(STATES) == sorted(map(str, TaskState))
    assert KINDS == item_fields.KINDS
    # Those of serving are read by its own WebSocket:
    assert (*event.DURABLE, *event.TOPICS, event.TELEMETRY) == events._TYPES
    assert tuple(map(str, Role)) == token._ROLES


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"RMCS_ADDRESS": "http://127.0.0.1:9", "RMCS_TOKEN": "x"},
        {"RMCS_ADDRESS": "ftp://nowhere"},
        {"RMCS_ADDRESS": "http://127.0.0.1:9", "RMCS_TOKEN_FILE": "/nowhere/token"},
    ],
    ids=["none", "nobody-listens", "no-address", "no-token"],
)
def test_without_a_service_completion_is_empty(
    environ: dict[str, str], offered: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RMCS_ADDRESS", "RMCS_TOKEN", "RMCS_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    assert offered("clusters", "drain", "", RMCS_HOME=str(tmp_path), **environ) == []
    assert offered("task", "show", "", RMCS_HOME=str(tmp_path), **environ) == ["last"]


def test_a_token_that_is_refused_is_no_word(service: HttpService, offered: Offer) -> None:
    assert offered("clusters", "drain", "", RMCS_TOKEN="revoked") == []


def test_one_that_does_not_answer_is_not_waited_for_long(offered: Offer, tmp_path: Path) -> None:
    """It is listened to, so that it takes the question; nobody ever says a word."""
    assert completion._ANSWER_S <= 2
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        address = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        assert offered("clusters", "drain", "", RMCS_HOME=str(tmp_path), RMCS_ADDRESS=address, RMCS_TOKEN="x") == []


class TestZsh:
    def completed(self, folder: Path, line: str) -> str:
        asked = {**os.environ, "_RMCS_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": line}
        done = subprocess.run([folder / "rmcs"], cwd=ROOT, env=asked, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def test_ids_and_names(self, service: HttpService, folder: Path) -> None:
        service.submit("alpha-1")
        assert '"alpha-1":' in self.completed(folder, "rmcs task show al")
        assert '"mac":"UP"' in self.completed(folder, "rmcs queue pause --cluster=m")
        script = (folder / "completion.zsh").read_text()
        assert script.lstrip().startswith("#compdef rmcs\n")
        for part in ("compdef _rmcs_completion rmcs", "_TYPER_COMPLETE_ARGS=", "_RMCS_COMPLETE=complete_zsh rmcs"):
            assert part in script

    def test_completion_escapes_shell_characters(self, service: HttpService, folder: Path) -> None:
        """zsh evaluates what it receives, and names of items are anybody's."""
        service.submit("alpha-1", name='\\$(touch /tmp/x) \\`touch /tmp/y\\` it\'s "it" <b>; \\\nlast')
        output = self.completed(folder, "rmcs task show al")
        (words,) = re.findall(r'"alpha-1":"([^"]*)"', output)
        assert re.fullmatch(r"[\w .,/·-]*", words), words
        assert "touch /tmp/x" in words


def test_words_of_others_are_plain() -> None:
    assert completion._SPECIAL.sub("·", "RUNNING python train.py --out=x") == "RUNNING python train.py --out=x"
    odd = "\\$()`'\"\n\t;|&<>{}[]*?~!#%^:"
    assert completion._SPECIAL.sub("·", f"a{odd}b") == f"a{'·' * len(odd)}b"


def test_a_word_that_is_an_equals_sign_stays_one() -> None:
    environ = {"COMP_WORDS": "rmcs\njob\nsubmit\n--\ntest\n=\nx", "COMP_CWORD": "6"}
    before = dict(environ)
    completion.join_split_options(environ)
    assert environ == before
