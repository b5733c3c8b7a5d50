"""Secrets in JSON, or in data that Python printed, within a command line."""

from __future__ import annotations

import json
import shlex
import time

import pytest

from ray_multicluster_scheduler.common.redaction import MASKED, mask_text, secrets_in_text, text_has_secrets


@pytest.mark.parametrize(
    ("line", "shown", "reported"),
    [
        ("""t.py '--conf={"password": "abc"}'""", """t.py '--conf={"password": "•••"}'""", ["abc"]),
        ("""C='{"a":1,"api_key":"abc"}' t.py""", """C='{"a":1,"api_key":"•••"}' t.py""", ["abc"]),
        ("""{'token' : 'abc', 'n': 'x'}""", """{'token' : '•••', 'n': 'x'}""", ["abc"]),
        ("""'{"db": {"password":\n "abc"}, "n": "x"}'""", """'{"db": {"password":\n "•••"}, "n": "x"}'""", ["abc"]),
        ("""{"my password": "abc"}""", """{"my password": "•••"}""", ["abc"]),
        ("""{"password": 123456, "n": 5}""", """{"password": •••, "n": 5}""", ["123456"]),
        (
            """{"passwords": {"one": "a]b", "more": ["c", 12345]}, "n": [5]}""",
            """{"passwords": •••, "n": [5]}""",
            ["a]b", "c", "12345"],
        ),
        ("""{"password": "a\\"b", "n": "x"}""", """{"password": "•••", "n": "x"}""", ['a\\"b', 'a"b']),
        ("""{"password": "a\\\\", "token": "b"}""", """{"password": "•••", "token": "•••"}""", ["a\\\\", "a\\", "b"]),
        ("""{"password": "cut o""", """{"password": "•••""", []),
        ("""{"password": "cut\n--lr 1""", """{"password": "•••\n--lr 1""", []),
        ("""{"passwords": ["cut", """, """{"passwords": •••""", ["cut"]),
    ],
)
def test_what_is_below_a_name_that_looks_secret(line: str, shown: str, reported: list[str]) -> None:
    assert mask_text(line) == mask_text(shown) == shown
    assert text_has_secrets(line)
    assert secrets_in_text(line) == reported


@pytest.mark.parametrize(
    "line",
    [
        """t.py '{"max_tokens": 5, "tokenizer": "gpt2", "author": "me", "monkey": ["a"]}'""",
        """t.py '{"token": null, "api_key": true, "password": ""}'""",
        """python -c 'print(d["key"], ["password", "token"])'""",
        """t.py '{"n": "token", "x": "key"}'""",
    ],
)
def test_text_without_secrets_is_unchanged(line: str) -> None:
    assert mask_text(line) == line
    assert secrets_in_text(line) == []


def nested(secret: str, depth: int) -> str:
    data: object = {"password": secret, "after": "this"}
    for _ in range(depth):
        data = {"conf": json.dumps(data)}
    return shlex.join(["t.py", "--conf", json.dumps(data), "--lr", "1"])


@pytest.mark.parametrize("secret", ["plain", "a b", "it's", 'say "x"', "back\\", "\\'\"", "ü", "]}"])
@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_json_in_json_as_a_shell_is_given_it(secret: str, depth: int) -> None:
    shown = mask_text(nested(secret, depth))
    assert shown == nested("other", depth).replace("other", MASKED), "it is the same whatever the secret is"
    assert secret in secrets_in_text(nested(secret, depth))


def test_python_data_as_a_shell_is_given_it() -> None:
    for quote in ("""'"'"'""", "'\\''"):
        line = f"t.py '{{{quote}password{quote}: {quote}abc{quote}, {quote}n{quote}: 5}}'"
        assert mask_text(line) == line.replace("abc", MASKED)
        assert secrets_in_text(line) == ["abc"]


def test_long_ones_cost_little() -> None:
    pieces = ["\\", "'", '"a', '"key":"', '"key":[', '"key":', '"key":"\n', '"a" ', "token=", "a:", "-a "]
    for line in (piece * (20_000 // len(piece)) for piece in pieces):
        began = time.perf_counter()
        mask_text(line)
        assert time.perf_counter() - began < 2.0
