"""Failed requests to a dashboard: one code, one sentence and one next step each, in time."""

from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import pickle
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ray_multicluster_scheduler.common.exception import ClusterConnectionError, ConfigurationError
from ray_multicluster_scheduler.scheduler.connection.dashboard.dashboard_client import DashboardClient
from ray_multicluster_scheduler.scheduler.connection.dashboard.dashboard_http import Timeouts
from ray_multicluster_scheduler.scheduler.connection.dashboard.dashboard_problem import DashboardProblem

pytestmark = pytest.mark.usefixtures("leak_check")

TOKEN = "tok-very-secret"
QUICK = Timeouts(connect=0.5, small=0.5, submit_first_try=0.3, submit=1.0)
PATIENT = Timeouts(connect=30.0, small=30.0)
"""For who answers at once, if the machine lets it."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def http_server(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    server = TestServer(app)
    await server.start_server(ssl=tls)
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{server.port}"
    finally:
        await server.close()


@asynccontextmanager
async def raw_server(greeting: bytes | None) -> AsyncIterator[str]:
    """Sends ``greeting`` and closes, or, with None, takes the connection and never says a word."""
    release = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if greeting is None:
            await release.wait()
        else:
            writer.write(greeting)
            await writer.drain()
            await reader.read(1)
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        release.set()
        server.close()
        await server.wait_closed()


async def problem_of(url: str, *, timeouts: Timeouts = PATIENT, **options: object) -> DashboardProblem:
    """What asking for the version leads to."""
    options.setdefault("token", lambda: TOKEN)
    client = DashboardClient("mac", url, timeouts=timeouts, **options)  # options of a table
    try:
        with pytest.raises(DashboardProblem) as caught:
            await client.version()
    finally:
        await client.close()
    error = caught.value
    assert isinstance(error, ClusterConnectionError)
    assert error.cluster == "mac"
    assert TOKEN not in f"{error} {error!r} {error.__cause__}"
    return error


async def test_no_server_listens() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))  # and it does not listen; nobody else can
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        error = await problem_of(url)
    assert (error.code, error.permanent, error.ambiguous) == ("DASHBOARD_DOWN", False, False)
    assert url in str(error)
    assert "refused" in str(error)
    assert "`dashboard`" in (error.next_step or "")


async def test_unknown_host() -> None:
    error = await problem_of("http://no-such-host.invalid:8265", timeouts=Timeouts(connect=30, small=60))
    assert error.code == "DASHBOARD_DOWN"
    assert "host name" in error.message


async def test_accepts_and_never_answers() -> None:
    async with raw_server(None) as url:
        before = time.monotonic()
        error = await problem_of(url, timeouts=QUICK)
        assert (error.code, error.permanent) == ("DASHBOARD_TIMEOUT", False)
        assert "0.5 s" in error.message
        assert time.monotonic() - before < 30


@pytest.mark.parametrize(
    "greeting", [b"SSH-2.0-OpenSSH_9.6\r\n", b"220 mail ESMTP\r\n", b"\x15\x03\x03\x00\x02\x02\x50"]
)
async def test_a_port_that_speaks_something_else(greeting: bytes) -> None:
    async with raw_server(greeting) as url:
        error = await problem_of(url)
        assert (error.code, error.permanent) == ("NOT_A_DASHBOARD", True)
        assert "does not speak HTTP" in error.message
        assert "`dashboard`" in (error.next_step or "")


async def test_closes_without_a_word() -> None:
    async with raw_server(b"") as url:
        assert (await problem_of(url, timeouts=QUICK)).code in ("DASHBOARD_DOWN", "DASHBOARD_TIMEOUT")


async def html(request: web.Request) -> web.Response:
    return web.Response(text="<html>Welcome to nginx</html>", content_type="text/html")


async def html_404(request: web.Request) -> web.Response:
    return web.Response(text="<html>Not here</html>", status=404)


async def other_json(request: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


async def redirect(request: web.Request) -> web.Response:
    raise web.HTTPFound("http://127.0.0.1:1/login")


@pytest.mark.parametrize("handler", [html, html_404, other_json, redirect])
async def test_another_web_server(handler: Handler) -> None:
    async with http_server(handler) as url:
        error = await problem_of(url)
        assert (error.code, error.permanent) == ("NOT_A_DASHBOARD", True)


async def test_a_strangers_404_is_not_taken_for_an_unknown_job() -> None:
    async with http_server(html_404) as url:
        client = DashboardClient("mac", url, timeouts=PATIENT)
        with pytest.raises(DashboardProblem) as caught:
            await client.job_info("j1")
        assert caught.value.code == "NOT_A_DASHBOARD"
        await client.close()


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize(("token", "words"), [(TOKEN, "refused our token"), (None, "none is configured")])
async def test_token(status: int, token: str | None, words: str) -> None:
    async def guarded(request: web.Request) -> web.Response:
        assert request.headers.get("Authorization") == (f"Bearer {token}" if token else None)
        return web.Response(text=f"Forbidden: {TOKEN} is wrong", status=status)

    async with http_server(guarded) as url:
        error = await problem_of(url, token=lambda: token)
        assert (error.code, error.permanent) == ("WRONG_TOKEN", True)
        assert words in error.message
        assert "`auth_token`" in (error.next_step or "")


@pytest.mark.parametrize("token", ["", "a\nb", "größe"])
async def test_unusable_token_is_never_sent(token: str) -> None:
    error = await problem_of("http://127.0.0.1:1", token=lambda: token)
    assert error.code == "WRONG_TOKEN"


async def test_missing_variable_of_a_token_is_a_problem_of_this_cluster() -> None:
    def missing() -> str:
        raise ConfigurationError("auth_token of cluster mac refers to X, which is not set.", next_step="set X")

    error = await problem_of("http://127.0.0.1:1", token=missing)
    assert (error.code, error.permanent, error.next_step) == ("WRONG_TOKEN", True, "set X")


async def test_the_token_is_resolved_for_each_request() -> None:
    seen: list[str | None] = []
    tokens = iter(["one", "two"])

    async def note(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        return web.json_response({"ray_version": "2.60.0"})

    async with http_server(note) as url:
        client = DashboardClient("mac", url, token=lambda: next(tokens))
        await client.version()
        await client.version()
        await client.close()
    assert seen == ["Bearer one", "Bearer two"]


async def test_server_error_shows_the_last_line_without_the_token() -> None:
    async def broken(request: web.Request) -> web.Response:
        return web.Response(status=500, text=f"Traceback …\n  File x\nValueError: bad {TOKEN} thing.\n.\n")

    async with http_server(broken) as url:
        error = await problem_of(url)
        assert (error.code, error.permanent) == ("BAD_ANSWER", False)
        assert "HTTP 500: ValueError: bad *** thing" in error.message


@pytest.mark.parametrize("status", [502, 503, 504])
async def test_proxy_in_front_of_a_dead_dashboard(status: int) -> None:
    async def proxy(request: web.Request) -> web.Response:
        return web.Response(status=status, text="<html>Bad Gateway</html>")

    async with http_server(proxy) as url:
        assert (await problem_of(url)).code == "DASHBOARD_DOWN"


async def test_answer_that_breaks_off() -> None:
    async with raw_server(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf") as url:
        error = await problem_of(url, timeouts=QUICK)
        assert error.code in ("BAD_ANSWER", "DASHBOARD_TIMEOUT")


def certificate(folder: Path) -> tuple[ssl.SSLContext, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = dt.datetime.now(dt.UTC)
    cert = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(minutes=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = folder / "cert.pem", folder / "key.pem"
    cert_file.write_bytes(cert.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert_file, key_file)
    return context, cert_file


async def ray_version(request: web.Request) -> web.Response:
    return web.json_response({"ray_version": "2.60.0"})


async def test_tls(tmp_path: Path) -> None:
    context, cert = certificate(tmp_path)
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(http_server(ray_version, context))
        error = await problem_of(url)
        assert (error.code, error.permanent) == ("TLS_FAILED", True)
        assert "`tls`" in (error.next_step or "")
        for options in ({"ca": str(cert)}, {"verify": False}):
            client = DashboardClient("mac", url, token=lambda: TOKEN, **options)
            assert (await client.version())["ray_version"] == "2.60.0"
            await client.close()


async def test_https_to_a_plain_port() -> None:
    async with http_server(ray_version) as url:
        error = await problem_of(url.replace("http:", "https:"))
        assert error.code == "TLS_FAILED"


async def test_missing_ca_file_is_named(tmp_path: Path) -> None:
    error = await problem_of("https://127.0.0.1:1", ca=str(tmp_path / "no.pem"))
    assert error.code == "TLS_FAILED"
    assert "no.pem" in error.message


def test_problem_survives_pickling() -> None:
    error = DashboardProblem("m", code="WRONG_TOKEN", ambiguous=True, cluster="mac", next_step="n")
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.code, copy.permanent, copy.ambiguous, str(copy), copy.cluster) == (
        "WRONG_TOKEN",
        True,
        True,
        str(error),
        "mac",
    )


def test_no_small_call_can_take_ten_seconds() -> None:
    limits = Timeouts()
    assert max(limits.connect, limits.small, limits.submit) < 10
    assert limits.submit_first_try < limits.submit
