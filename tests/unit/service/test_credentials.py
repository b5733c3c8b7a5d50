"""Which token a program uses, and to whom it is never sent."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from ray_multicluster_scheduler.app.client_api.remote import service_client
from ray_multicluster_scheduler.app.client_api.remote.credentials import Credentials, find_credentials
from ray_multicluster_scheduler.app.client_api.remote.service_client import ServiceClient
from ray_multicluster_scheduler.app.client_api.unified_scheduler import UnifiedScheduler
from ray_multicluster_scheduler.common.exception import (
    ConfigurationError,
    NotAllowedError,
    ServiceUnavailableError,
    TaskCancelledError,
)
from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import Role
from ray_multicluster_scheduler.control_plane.store.private_file import write_private
from ray_multicluster_scheduler.control_plane.store.state_folder import StateFolder
from tests.unit.client_api.control_plane import until
from tests.unit.service.http_service import HttpService

HERE, ELSEWHERE = "http://127.0.0.1:8000", "http://127.0.0.1:8001"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[HttpService]:
    with HttpService(tmp_path / "service", auth="token") as one:
        yield one


@pytest.fixture
def home(tmp_path: Path) -> Iterator[StateFolder]:
    with StateFolder(tmp_path / "home") as state:
        state.announce(address=HERE)
        write_private(state.path / "token", "rmcs_h_home")
        yield state


def test_the_order_in_which_it_is_looked_for(home: StateFolder, tmp_path: Path) -> None:
    write_private(tmp_path / "file", "rmcs_f_file")
    environ = {"RMCS_HOME": str(home.path), "RMCS_TOKEN_FILE": str(tmp_path / "file"), "RMCS_TOKEN": "rmcs_e_env"}
    assert find_credentials(HERE, environ, "rmcs_a_given").token == "rmcs_a_given"
    assert find_credentials(HERE, environ).token == "rmcs_e_env"
    del environ["RMCS_TOKEN"]
    found = find_credentials(ELSEWHERE, environ)
    assert (found.token, found.source) == ("rmcs_f_file", f"{tmp_path / 'file'} (named by RMCS_TOKEN_FILE)")
    del environ["RMCS_TOKEN_FILE"]
    found = find_credentials(HERE, environ)
    assert (found.token, found.source) == ("rmcs_h_home", str(home.path / "token"))
    assert "home" not in repr(found).replace(str(home.path), "")


def test_that_of_the_folder_is_sent_to_nobody_else(home: StateFolder) -> None:
    environ = {"RMCS_HOME": str(home.path)}
    for other in (ELSEWHERE, "http://localhost:8000", "https://127.0.0.1:8000", "http://evil.example:8000"):
        found = find_credentials(other, environ)
        assert found.token is None
        assert f"is for {HERE}" in found.source
    found = find_credentials(HERE, environ)
    assert found.are_for(HERE)
    home.announce(address=ELSEWHERE)
    assert not found.are_for(HERE)
    home.release()
    assert not found.are_for(HERE)
    assert find_credentials(HERE, environ).token is None, "another program listens there now"


def test_files_that_are_refused(home: StateFolder, tmp_path: Path) -> None:
    (home.path / "token").chmod(0o644)
    with pytest.raises(ConfigurationError, match="is readable by other users"):
        find_credentials(HERE, {"RMCS_HOME": str(home.path)})
    with pytest.raises(ConfigurationError, match="RMCS_TOKEN_FILE names .*does not exist"):
        find_credentials(HERE, {"RMCS_TOKEN_FILE": str(tmp_path / "nowhere")})


@pytest.mark.parametrize("token", ["", "a b", "a\nb", "ä"])
def test_what_is_no_token_is_not_shown(token: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^token is not a token\. What"):
        find_credentials(HERE, {}, token)


def test_a_program_says_where_the_token_is_from_that_was_refused(
    service: HttpService, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RMCS_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(NotAllowedError, match=r"requires a token, and no token was found for http://127"):
        UnifiedScheduler(address=service.address).list_clusters()
    monkeypatch.setenv("RMCS_TOKEN", "rmcs_wrong_secret")
    with pytest.raises(NotAllowedError, match=r"rejects the token from RMCS_TOKEN") as refused:
        UnifiedScheduler(address=service.address).list_clusters()
    assert "secret" not in str(refused.value)
    with pytest.raises(NotAllowedError, match="the argument token"):
        UnifiedScheduler(address=service.address, token="rmcs_wrong_secret").list_clusters()
    with UnifiedScheduler(address=service.address, token=service.token) as scheduler:
        assert [row["name"] for row in scheduler.list_clusters()] == ["mac"]


def test_another_token_in_the_same_file_is_found(service: HttpService, tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_private(path, service.token_for("me", *Role))
    found = find_credentials(service.address, {"RMCS_TOKEN_FILE": str(path)})

    async def ask() -> None:
        client = ServiceClient(service.address, found)
        try:
            assert (await client.ask("GET", "/api/v1/fleet"))["you"]["user"] == "me"
            service.book.revoke(service.book.list()[-1]["id"])
            write_private(path, service.token_for("you", *Role))
            assert (await client.ask("GET", "/api/v1/fleet"))["you"]["user"] == "you"
        finally:
            await client.close()

    asyncio.run(ask())


def test_another_listener_at_the_address_of_the_service_does_not_get_its_token(
    service: HttpService, home: StateFolder
) -> None:
    home.announce(address=service.address)
    write_private(home.path / "token", service.token)
    found = find_credentials(service.address, {"RMCS_HOME": str(home.path)})

    async def ask() -> None:
        client = ServiceClient(service.address, found)
        try:
            await client.ask("GET", "/api/v1/fleet")
            client._silent = True  # it did not answer for a moment
            home.announce()
            with pytest.raises(ServiceUnavailableError, match="does not run"):
                await client.ask("GET", "/api/v1/fleet", patience=0.3)
            home.announce(address=service.address)
            await client.ask("GET", "/api/v1/fleet")
        finally:
            await client.close()

    asyncio.run(ask())


def test_a_waiting_client_learns_that_its_token_was_revoked(service: HttpService) -> None:
    token = service.token_for("me", *Role)
    scheduler = UnifiedScheduler(address=service.address, token=token)
    handle = scheduler.submit_task_async(print)
    until(lambda: handle.cluster == "mac")
    service.book.revoke(token.split("_")[1])
    scheduler._runtime._poller._wake.set()  # type: ignore[union-attr]  # it asks again now, not in 25 s
    with pytest.raises(NotAllowedError, match="revoked"):
        handle.result(20)
    scheduler.shutdown()
    assert not isinstance(handle.exception(), TaskCancelledError)


@pytest.mark.parametrize("address", ["http://fleet.example:8000", "http://192.168.5.7:8000"])
def test_a_token_is_not_sent_to_another_machine_in_the_open(address: str) -> None:
    with pytest.raises(ConfigurationError, match="not encrypted"):
        find_credentials(address, {}, "rmcs_a_b")
    assert find_credentials(address, {"RMCS_HOME": "/nowhere"}).token is None


@pytest.mark.parametrize(
    "address", ["https://fleet.example:8000", "http://127.0.0.1:8000", "http://localhost:1", "http://[::1]:8000"]
)
def test_it_is_sent_over_tls_and_on_this_machine(address: str) -> None:
    assert find_credentials(address, {}, "rmcs_a_b").token == "rmcs_a_b"


async def test_after_a_while_it_is_asked_anew_who_listens_there(monkeypatch: pytest.MonkeyPatch) -> None:
    credentials = Credentials("rmcs_a_b", "a file", home=Path("/nowhere"))
    client = ServiceClient("http://127.0.0.1:9", credentials)
    try:
        with pytest.raises(Exception, match="does not run"):
            client._headers()
        client._on_response()
        assert client._headers() == {"Authorization": "Bearer rmcs_a_b"}
        monkeypatch.setattr(service_client, "_SURE_S", -1.0)
        with pytest.raises(Exception, match="does not run"):
            client._headers()
    finally:
        await client.close()
