"""Where a service may listen, what it proves itself with, and by which names it is asked."""

from __future__ import annotations

import datetime
import http.client
import ipaddress
import json
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ray_multicluster_scheduler.app.client_api.unified_scheduler import UnifiedScheduler
from ray_multicluster_scheduler.common.exception import ConfigurationError, SchedulerError
from ray_multicluster_scheduler.control_plane.admin_api.access.access import Access
from ray_multicluster_scheduler.control_plane.admin_api.http.listen_address import ListenAddress
from ray_multicluster_scheduler.control_plane.admin_api.serve import listen_address_of
from ray_multicluster_scheduler.control_plane.config import Settings
from ray_multicluster_scheduler.control_plane.store.state_folder import holder
from tests.support.running_service import RunningService
from tests.unit.client_api.control_plane import fleet

CLUSTERS = "clusters:\n  - {name: mac, dashboard: 'http://127.0.0.1:9'}\n"


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 and fleet.example that vouches for itself, and its key."""
    folder = tmp_path_factory.mktemp("pem")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rmcs test")])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName("fleet.example"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "key.pem").write_bytes(key.private_bytes(*private))
    return folder / "cert.pem", folder / "key.pem"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.1", "example.com", ""])
def test_elsewhere_only_with_tls_and_tokens(pem: tuple[Path, Path], host: str) -> None:
    with pytest.raises(ConfigurationError, match="without TLS"):
        ListenAddress(host)
    with pytest.raises(ConfigurationError, match="without tokens"):
        ListenAddress(host, auth="none", cert=pem[0], key=pem[1])
    assert ListenAddress(host, cert=pem[0], key=pem[1]).secure


def test_the_names_that_it_is_asked_by(pem: tuple[Path, Path]) -> None:
    cert, key = pem
    assert ListenAddress().names == ()
    assert ListenAddress(allow_hosts=["proxy.example"]).names == ("proxy.example",)
    everywhere = ListenAddress("0.0.0.0", cert=cert, key=key, allow_hosts=["proxy.example"])
    assert everywhere.names == ("fleet.example", "127.0.0.1", "proxy.example")
    assert everywhere.address(8000) == "https://fleet.example:8000"
    there = ListenAddress("192.168.1.1", cert=cert, key=key)
    assert there.names == ("192.168.1.1", "fleet.example", "127.0.0.1")
    assert there.address(5) == "https://192.168.1.1:5"
    assert ListenAddress("::1").address(5) == "http://[::1]:5"


def test_files_that_cannot_be_used(pem: tuple[Path, Path], tmp_path: Path) -> None:
    cert, key = pem
    with pytest.raises(ConfigurationError, match="both a certificate and its key"):
        ListenAddress(cert=cert)
    for wrong in ((key, cert), (cert, tmp_path / "nowhere"), (tmp_path / "nowhere", key), (cert, cert)):
        with pytest.raises(ConfigurationError, match="cannot be used"):
            ListenAddress(cert=wrong[0], key=wrong[1])


def test_the_setting_auth_says_whether_tokens_are_asked_for(tmp_path: Path) -> None:
    assert listen_address_of(fleet()).auth == "token"
    assert listen_address_of(fleet(auth="none")).auth == "none"
    assert listen_address_of(fleet(auth="none"), auth="token").auth == "token"
    with pytest.raises(ValueError, match="auth"):
        Settings.model_validate({"auth": "maybe"})


def test_the_setting_service_tls_serves_https(pem: tuple[Path, Path]) -> None:
    cert, key = pem
    found = listen_address_of(fleet(service_tls={"cert": str(cert), "key": str(key)}), host="0.0.0.0")
    assert (found.cert, found.key, found.secure) == (cert, key, True)


@pytest.mark.parametrize("origin", ["https://a.example/x", "a.example", "*", "ftp://a", "https://a.example?x"])
def test_invalid_origin_is_rejected(origin: str) -> None:
    with pytest.raises(ValueError, match="cors_origins"):
        Settings.model_validate({"cors_origins": [origin]})


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, pem: tuple[Path, Path]) -> Iterator[RunningService]:
    folder = tmp_path_factory.mktemp("tls")
    (folder / "clusters.yaml").write_text(CLUSTERS)
    tls = json.dumps({"cert": str(pem[0]), "key": str(pem[1])})
    with RunningService(folder / "clusters.yaml", folder / "state", service_tls=tls) as one:
        yield one


def test_a_program_reaches_it_over_tls(service: RunningService, pem: tuple[Path, Path]) -> None:
    assert service.address.startswith("https://127.0.0.1:")
    with UnifiedScheduler(address=service.address, token=service.token, tls_ca=pem[0]) as scheduler:
        assert [row["name"] for row in scheduler.list_clusters()] == ["mac"]
    with pytest.raises(SchedulerError, match=r"is not trusted.*RMCS_TLS_CA"):
        UnifiedScheduler(address=service.address, token=service.token).list_clusters()
    with pytest.raises(ConfigurationError, match="The certificates in .* cannot be used"):
        UnifiedScheduler(address=service.address, token=service.token, tls_ca="/nowhere").list_clusters()


def test_a_command_on_the_same_account_finds_address_and_token(service: RunningService, pem: tuple[Path, Path]) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RMCS_")}
    environ.update(RMCS_HOME=str(service.state), RMCS_TLS_CA=str(pem[0]))
    command = [sys.executable, "-m", "ray_multicluster_scheduler", "token", "list", "-o", "json"]
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)[0]["note"] == "made by rmcs up"
    output = holder(service.state)
    assert output is not None
    assert output["address"] == service.address
    assert service.token not in json.dumps(output) + service.log.read_text()
    assert "has a token for you" in service.log.read_text()


def ask(service: RunningService, pem: Path, host: str, method: str = "GET", path: str = "/healthz") -> Any:
    trust = ssl.create_default_context(cafile=pem)
    connection = http.client.HTTPSConnection(
        "127.0.0.1", int(service.address.rpartition(":")[2]), timeout=20, context=trust
    )
    try:
        connection.request(method, path, headers={"Host": host, "Authorization": f"Bearer {service.token}"})
        answer = connection.getresponse()
        answer.read()
        return answer
    finally:
        connection.close()


def test_it_is_asked_by_its_names_only(service: RunningService, pem: tuple[Path, Path]) -> None:
    for host, status in (
        ("127.0.0.1", 200),
        ("fleet.example:8000", 200),
        ("FLEET.example", 200),
        ("evil.example", 403),
    ):
        assert ask(service, pem[0], host).status == status


def test_its_cookies_are_sent_over_tls_only(service: RunningService, pem: tuple[Path, Path]) -> None:
    answer = ask(service, pem[0], "127.0.0.1", "POST", "/api/v1/session")
    assert answer.status == 200
    assert answer.headers["set-cookie"].endswith("; Secure")


def test_names_are_compared_as_names_are() -> None:
    assert Access(None, hosts=["Fleet.Example"], origins=["HTTPS://A.example/"]).hosts == {"fleet.example"}
