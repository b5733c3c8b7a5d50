"""Checks of addresses: used exactly as written, so what is written must be complete."""

from __future__ import annotations

import re

_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\]"
_HOST_PORT = re.compile(rf"(?:{_HOST}):([0-9]{{1,9}})")
_DASHBOARD = re.compile(rf"https?://(?:{_HOST}):([0-9]{{1,9}})(?:/[^\s?#]*)?")
_WITH_USER = re.compile(r"[a-z]+://[^/]*@")
_MAX_PORT = 65535


def check_host_port(value: str) -> str:
    """``host:port``. Raises ValueError in words."""
    match = _HOST_PORT.fullmatch(value)
    if match is None:
        raise ValueError(f"expected host:port, for example 192.168.5.7:10001, got {value!r}")
    _check_port(match.group(1), value, "host:port")
    return value


def check_dashboard(value: str) -> str:
    """``http(s)://host:port[/path]`` without user, query or fragment. Raises ValueError in words."""
    if _WITH_USER.match(value):
        raise ValueError("a user name or password in the address is not used; give the token as auth_token")
    match = _DASHBOARD.fullmatch(value)
    if match is None:
        expected = "expected http://host:port or https://host:port, for example http://192.168.5.7:8265"
        raise ValueError(f"{expected}, got {value!r}")
    _check_port(match.group(1), value, "http://host:port or https://host:port")
    return value.rstrip("/")


def _check_port(text: str, value: str, shape: str) -> None:
    if not 0 < int(text) <= _MAX_PORT:
        raise ValueError(f"expected {shape} with a port from 1 to {_MAX_PORT}, got {value!r}, where it is {text}")
