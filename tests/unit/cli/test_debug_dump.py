"""`rmcs debug-dump`: what is in the archive, and what is not."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler.cli.commands import debug_dump
from ray_multicluster_scheduler.cli.debug import local_files
from ray_multicluster_scheduler.cli.debug.secret_masking import DumpMasker, local_secrets
from ray_multicluster_scheduler.common.model import JobDescription
from ray_multicluster_scheduler.control_plane.config import load_config
from tests.unit.cli.conftest import Rmcs
from tests.unit.client_api.control_plane import until
from tests.unit.service.http_service import HttpService, body
from tests.unit.service.service_plane import a_job

TOKEN = f"rmcs_abc123_{'0f' * 32}"
IN_FILE, IN_JOB, OF_CLUSTER, IN_ENTRYPOINT = "home-folder-t0ken", "job-s3cret-value", "cluster-t0ken-x", "given-s3cret"
PLANTED = (TOKEN, IN_FILE, IN_JOB, OF_CLUSTER, IN_ENTRYPOINT)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder with a token, and a configuration with that of a cluster."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "token").write_text(IN_FILE + "\n")
    (home / "token").chmod(0o600)
    (home / "blobs").mkdir()
    (home / "blobs" / "ab").write_bytes(b"x" * 10)
    text = f"clusters:\n- {{name: mac, dashboard: 'http://127.0.0.1:9', auth_token: {OF_CLUSTER}}}\n"
    (home / "clusters.yaml").write_text(text)
    monkeypatch.setenv("RMCS_HOME", str(home))
    monkeypatch.setenv("MY_API_KEY", TOKEN)
    monkeypatch.delenv("RMCS_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    return home


def opened(path: Path) -> dict[str, str]:
    """Texts by their names, without the folder that all are in."""
    with tarfile.open(path) as tar:
        members = tar.getmembers()
        assert {one.name.partition("/")[0] for one in members} == {members[0].name.partition("/")[0]}
        assert {one.mode for one in members} == {0o600}
        files = {one.name.partition("/")[2]: tar.extractfile(one) for one in members}
        return {name: file.read().decode() for name, file in files.items() if file is not None}


class TestWithAService:
    @pytest.fixture
    def parts(self, home: Path, service: HttpService, rmcs: Rmcs, tmp_path: Path) -> dict[str, str]:
        job = JobDescription(f"python x.py --password {IN_ENTRYPOINT}")
        env = {"env_vars": {"DB_PASSWORD": IN_JOB, "MODE": "fast"}}
        service.post("/api/v1/items", body(a_job("j1", job=job, runtime_env=env)))
        service.submit("t0", 8, name=f"told-{TOKEN}")
        until(lambda: service.get("/api/v1/items/t0")["state"] == "RUNNING")
        service.submit("t1", 8, name=OF_CLUSTER, owner="ann")
        until(lambda: service.get("/api/v1/items/t1/explain")["code"] == "NO_CAPACITY")
        done = rmcs("debug-dump", "out.tar.gz")
        assert (done.code, done.out) == (0, "out.tar.gz\n")
        assert stat.S_IMODE((tmp_path / "out.tar.gz").stat().st_mode) == 0o600
        return opened(tmp_path / "out.tar.gz")

    def test_no_planted_secret_is_in_it(self, parts: dict[str, str], service: HttpService) -> None:
        for name, text in parts.items():
            for secret in (*PLANTED, service.token):
                assert secret not in text, name
        assert "python x.py --password •••" in parts["service/jobs.json"], "what is no secret is reported"

    def test_reports_of_the_service(self, parts: dict[str, str], service: HttpService) -> None:
        reported = {name: json.loads(text) for name, text in parts.items() if name.endswith(".json")}
        assert reported["service/about.json"]["address"] == service.address
        assert [one["name"] for one in reported["service/clusters.json"]["clusters"]] == ["mac"]
        assert reported["service/clusters.json"]["clusters"][0]["breaker"]["state"] == "CLOSED"
        assert reported["service/settings.json"]["settings"]["auth"] == "token", "how it is asked for is no secret"
        assert reported["service/queue.json"]["depth"] == 1
        assert {row["owner"] for row in reported["service/owners.json"]["owners"]} >= {"ann"}
        assert {row["id"] for row in reported["service/items.json"]["items"]} == {"j1", "t0", "t1"}
        why = {one["item"]["id"]: one["explain"] for one in reported["service/explain.json"]["explained"]}
        assert why["t1"]["code"] == "NO_CAPACITY"
        assert any(one.startswith("rich ") for one in reported["versions.json"]["packages"])
        assert reported["machine.json"]["variables"]["RMCS_TOKEN"] == "•••"
        events = [json.loads(line) for line in parts["service/events.jsonl"].splitlines()]
        assert {"t0", "t1"} <= {event.get("id") for event in events}
        assert "rmcs_" in parts["service/metrics.txt"]

    def test_the_readme_names_all_files_and_what_is_missing(self, parts: dict[str, str]) -> None:
        for name in parts.keys() - {"README.txt"}:
            assert f"\n{name} " in parts["README.txt"]
        missing = parts["README.txt"].partition("Left out:")[2]
        assert "service/log.txt" in missing
        assert "does not run on this machine with this RMCS_HOME" in missing

    def test_a_part_that_is_refused_is_left_out(
        self, home: Path, service: HttpService, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import Role

        monkeypatch.setenv("RMCS_TOKEN", service.token_for("vic", Role.VIEWER))
        done = rmcs("debug-dump", "-o", "json")
        reported = json.loads(done.out)
        assert done.code == 0
        assert Path(reported["file"]).name.startswith("rmcs-debug-")
        assert Path(reported["file"]).stat().st_size == reported["bytes"]
        assert "service/settings.json" in reported["parts"]

    def test_one_that_does_not_answer(self, home: Path, rmcs: Rmcs, tmp_path: Path) -> None:
        done = rmcs("debug-dump", "x.tar.gz", "--address", "http://127.0.0.1:9")
        assert done.code == 0
        assert "left out: service/queue.json: " in done.err
        assert "versions.json" in opened(tmp_path / "x.tar.gz")


class TestWithoutAService:
    def test_facts_about_this_machine(self, home: Path, rmcs: Rmcs, tmp_path: Path) -> None:
        done = rmcs("debug-dump", "x.tar.gz")
        assert done.code == 0
        assert "left out: service/: no service runs here" in done.err
        parts = opened(tmp_path / "x.tar.gz")
        assert parts.keys() == {"README.txt", "versions.json", "machine.json", "home-folder.txt", "config.json"}
        assert json.loads(parts["config.json"])["clusters"][0]["name"] == "mac"
        assert not [name for name, text in parts.items() for secret in PLANTED if secret in text]
        lines = parts["home-folder.txt"].splitlines()
        assert next(line for line in lines if line.endswith(" token")).startswith("-rw-------")
        assert any("1 payloads, 10 bytes" in line for line in lines)

    def test_an_invalid_configuration_is_reported(self, home: Path, rmcs: Rmcs) -> None:
        (home / "clusters.yaml").write_text("clusters: 5\n")
        done = rmcs("debug-dump", "x.tar.gz")
        assert done.code == 0
        assert "left out: config.json: " in done.err

    def test_an_existing_file_is_kept(self, home: Path, rmcs: Rmcs, tmp_path: Path) -> None:
        (tmp_path / "x.tar.gz").write_text("mine")
        done = rmcs("debug-dump", "x.tar.gz")
        assert (done.code, done.out) == (2, "")
        assert "What to do: give another name, or --force" in done.err
        assert (tmp_path / "x.tar.gz").read_text() == "mine"
        assert rmcs("debug-dump", "x.tar.gz", "--force").code == 0
        assert "README.txt" in opened(tmp_path / "x.tar.gz")

    def test_only_a_file_is_ever_replaced(self, home: Path, rmcs: Rmcs, tmp_path: Path) -> None:
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)  # as a device would be
        done = rmcs("debug-dump", "pipe", "--force")
        assert done.code == 2
        assert "pipe is not a regular file, and is not replaced.\nWhat to do: give the name of a file" in done.err
        assert pipe.is_fifo()
        done = rmcs("debug-dump", "home", "--force")
        assert done.code == 2
        assert "home is a folder" in done.err

    def test_of_a_link_what_it_leads_to_is_replaced(self, home: Path, rmcs: Rmcs, tmp_path: Path) -> None:
        (tmp_path / "old").write_text("mine")
        os.symlink("old", tmp_path / "link")
        assert rmcs("debug-dump", "link", "--force").code == 0
        assert (tmp_path / "link").is_symlink()
        assert "README.txt" in opened(tmp_path / "old")

    def test_links_that_lead_in_a_circle(self, home: Path, rmcs: Rmcs, tmp_path: Path) -> None:
        (tmp_path / "loop").symlink_to(tmp_path / "loop")
        done = rmcs("debug-dump", str(tmp_path / "loop"))
        assert done.code == 2
        assert f"{tmp_path / 'loop'} cannot be written: " in done.err

    def test_a_folder_that_is_not_there(self, home: Path, rmcs: Rmcs) -> None:
        assert rmcs("debug-dump", "nowhere/x.tar.gz").code == 2

    def test_dump_without_a_home_folder(self, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("RMCS_HOME", str(tmp_path / "none"))
        monkeypatch.chdir(tmp_path)
        assert rmcs("debug-dump", "x.tar.gz").code == 0
        assert "does not exist" in opened(tmp_path / "x.tar.gz")["home-folder.txt"]


class TestDumpMasker:
    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            (f"a {TOKEN} b", "a ••• b"),
            ("it is hunter-22, she said", "it is •••, she said"),
            ("Authorization: Bearer abc", "Authorization: •••"),
            ("{'auth_token': 'abc', 'n': 'x'}", "{'auth_token': '•••', 'n': 'x'}"),
            ("http://u:p@host/x", "http://•••@host/x"),
            ("python x.py --token abc", "python x.py --token •••"),
            ("action=pause reason='password=abc' n=1", "action=pause reason='password=•••' n=1"),
            ("""x.py '{"a": {"password": "abc"}}'""", """x.py '{"a": {"password": "•••"}}'"""),
            ("nothing of that kind", "nothing of that kind"),
        ],
    )
    def test_text(self, text: str, shown: str) -> None:
        masker = DumpMasker(["hunter-22", "x"])
        assert masker.mask_text(text) == shown
        assert masker.is_clean(shown)
        assert masker.is_clean(text) == (text == shown)

    def test_a_log_of_json_lines(self) -> None:
        log = """{"message": "reason='token=abc'", "api_key": "abc"}\nplain hunter-22\n"""
        shown = """{"message": "reason='token=•••'", "api_key": "•••"}\nplain •••\n"""
        assert DumpMasker(["hunter-22"]).mask_lines(log) == shown

    def test_data(self) -> None:
        value = {"PASSWORD": 5, "auth": "token", "tokens": ["a", {"b": "c"}], "hunter-22": [True, None, 1.5]}
        covered = DumpMasker(["hunter-22"]).mask_data(value)
        assert covered == {
            "PASSWORD": "•••",
            "auth": "token",
            "tokens": ["•••", {"b": "•••"}],
            "•••": [True, None, 1.5],
        }
        assert DumpMasker().mask_data({"auth": "abc"}) == {"auth": "•••"}

    def test_the_end_of_a_long_text_is_cut_off(self) -> None:
        text = DumpMasker().mask_text("x " * 20_000 + "--token abc")
        assert "abc" not in text
        assert DumpMasker().is_clean(text)

    def test_final_check_finds_an_unmasked_secret(self, monkeypatch: pytest.MonkeyPatch) -> None:
        masker = DumpMasker(['say "hi" to s3cret'])
        monkeypatch.setattr(masker, "mask_data", lambda value, **_: value)
        monkeypatch.setattr(masker, "mask_lines", lambda text: text)
        dump = debug_dump._Dump(masker)
        dump.add("a.json", "", {"x": 'say "hi" to s3cret'})
        dump.add("b.txt", "", f"… {TOKEN} …")
        dump.add("c.txt", "", "fine")
        assert (dump.texts.keys(), dump.left_out.keys()) == ({"c.txt"}, {"a.json", "b.txt"})

    def test_secrets_of_this_machine(self, tmp_path: Path) -> None:
        (tmp_path / "tok").write_text("from-a-file\n")
        (tmp_path / "mine").write_text("of-a-variable\n")
        (tmp_path / "secret.key").write_text("the-key\n")
        clusters: list[dict[str, Any]] = [
            {"name": "a", "auth_token": "plain-one", "runtime_env": {"env_vars": {"X_TOKEN": "in-env", "Y": "no"}}},
            {"name": "b", "auth_token": "${B_SECRET}"},
            {"name": "c", "auth_token_path": str(tmp_path / "tok")},
            {"name": "d", "auth_token": "${NOWHERE}"},
        ]
        (tmp_path / "c.yaml").write_text(
            json.dumps({"clusters": [{"dashboard": "http://127.0.0.1:9", **one} for one in clusters]})
        )
        environ = {
            "B_SECRET": "by-name",
            "RMCS_TOKEN_FILE": str(tmp_path / "mine"),
            "SSH_KEY": "/a/path",
            "USE_TOKEN": "true",
        }
        found = {one.strip() for one in local_secrets(tmp_path, load_config(tmp_path / "c.yaml"), environ)}
        wanted = {"plain-one", "in-env", "by-name", "from-a-file", "of-a-variable", "the-key"}
        assert found - {""} == wanted


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux tells where another process writes")
class TestLog:
    def last_line(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stderr: Any) -> str:
        wait = "import sys; print('ready', flush=True); sys.stdin.read()"
        with subprocess.Popen(
            [sys.executable, "-c", wait], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            output = {"pid": process.pid, "address": "http://127.0.0.1:1"}
            monkeypatch.setattr("ray_multicluster_scheduler.control_plane.store.state_folder.holder", lambda _: output)
            try:
                return local_files.tail_of_log(tmp_path, "http://127.0.0.1:1")
            finally:
                process.communicate()

    def test_the_end_of_a_file(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(local_files, "LOG_BYTES", 20)
        log = tmp_path / "log"
        log.write_text("an old line that is cut\nthe last line\n")
        with log.open("a") as stream:
            assert self.last_line(monkeypatch, tmp_path, stream) == "the last line\n"

    def test_no_file(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        with pytest.raises(OSError, match="not log to a file"):
            self.last_line(monkeypatch, tmp_path, subprocess.PIPE)

    def test_another_service(self, tmp_path: Path) -> None:
        with pytest.raises(OSError, match="does not run on this machine"):
            local_files.tail_of_log(tmp_path, "http://127.0.0.1:1")


def test_a_long_listing_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(local_files, "MAX_FILES", 3)
    for number in range(5):
        (tmp_path / f"f{number}").touch()
    os.symlink("/nowhere", tmp_path / "f0-link")
    lines = local_files.listing(tmp_path).splitlines()
    assert len(lines) == 5
    assert lines[-1] == "and more than these 3"
