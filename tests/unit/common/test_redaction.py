"""What looks like a secret, and what is shown instead."""

from __future__ import annotations

import time

import pytest

from ray_multicluster_scheduler.common.redaction import (
    MASKED,
    data_has_secrets,
    mask_data,
    mask_text,
    name_looks_secret,
    secrets_in_data,
    secrets_in_text,
    text_has_secrets,
)


@pytest.mark.parametrize(
    "name",
    [
        "TOKEN",
        "API_TOKEN",
        "HF_TOKEN_2",
        "apiToken",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_ACCESS_KEY_ID",
        "apikey",
        "DB_PASSWORD",
        "db-pass",
        "PGPASSWORD",
        "GOOGLE_CREDENTIALS",
        "SSH_KEYS",
        "SENTRY_DSN",
        "GITHUB_PAT",
        "AUTHORIZATION",
        "SLACK_WEBHOOK",
        "API_TOKENS",
        "SERVICE_JWT",
        "tokenValue",
        "apiKeyProd",
        "APIKeyProd",
        "BEARER",
        "sessionCookies",
        "MY_PW",
        "MY_PWD",
        "dbPwd",
        "ROOTPW",
        "pwd",
        "AWS_SESSION_TOKEN",
        "AWS_SESSION",
        "SESSION_TOKEN",
        "PHPSESSID",
        "SESSIONID",
        "APP_OTP",
        "PASSCODE",
    ],
)
def test_names_that_look_secret(name: str) -> None:
    assert name_looks_secret(name)
    assert mask_text(f"{name}=s3cret python train.py") == f"{name}={MASKED} python train.py"


@pytest.mark.parametrize(
    "name",
    [
        "PATH",
        "PYTHONPATH",
        "TOKENIZERS_PARALLELISM",
        "AUTHOR",
        "KEYBOARD",
        "OMP_NUM_THREADS",
        "RMCS_FENCE",
        "MONKEY",
        "MAX_TOKENS",
        "PWD",
        "OLDPWD",
        "RAY_SESSION_DIR",
        "XDG_SESSION_TYPE",
        "DESKTOP_SESSION",
        "POWER",
        "PWM_RATE",
        "OPTIONS",
    ],
)
def test_names_that_do_not(name: str) -> None:
    assert not name_looks_secret(name)
    assert mask_text(f"{name}=5 python train.py --tokenizer gpt2 --author me") == (
        f"{name}=5 python train.py --tokenizer gpt2 --author me"
    )


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("python train.py", "python train.py"),
        ("A=1 API_KEY='a b' python t.py", f"A=1 API_KEY={MASKED} python t.py"),
        ('env DB_PASSWORD="x y";echo', f"env DB_PASSWORD={MASKED};echo"),
        ("t.py --api-key abc --lr 1", f"t.py --api-key {MASKED} --lr 1"),
        ("t.py --token=abc", f"t.py --token={MASKED}"),
        ('curl -H "Authorization: Bearer abc" x', f'curl -H "Authorization: {MASKED}" x'),
        ("curl -H 'X-Api-Key: abc' x", f"curl -H 'X-Api-Key: {MASKED}' x"),
        ("call authorization:Basic abc x", f"call authorization:{MASKED} x"),
        ("call 'Bearer abc' x", f"call 'Bearer {MASKED}' x"),
        ("python t.py http://host:80/key --max-tokens 5", "python t.py http://host:80/key --max-tokens 5"),
        ("pip install --index-url https://me:pw@host/x", f"pip install --index-url https://me:{MASKED}@host/x"),
        ("sh -c 'TOKEN=abc run'", f"sh -c 'TOKEN={MASKED} run'"),
        ("reason='password=abc' n=1", f"reason='password={MASKED}' n=1"),
        ("t.py --conf=password=abc", f"t.py --conf=password={MASKED}"),
        ('sh -c "t.py --token abc"', f'sh -c "t.py --token {MASKED}"'),
        ("sh -c '--token abc'", f"sh -c '--token {MASKED}'"),
        ("say 'a:token: abc'", f"say 'a:token: {MASKED}'"),
    ],
)
def test_lines(line: str, shown: str) -> None:
    assert mask_text(line) == shown
    assert text_has_secrets(line) is (line != shown)


def test_plain_data() -> None:
    env = {
        "env_vars": {"TOKEN": "a", "X": "b"},
        "pip": ["https://u:p@host/s", "x"],
        "n": 5,
        "credentials": {"a": ["b"]},
    }
    assert mask_data(env) == {
        "env_vars": {"TOKEN": MASKED, "X": "b"},
        "pip": [MASKED, "x"],
        "n": 5,
        "credentials": {"a": [MASKED]},
    }
    assert data_has_secrets(env)
    assert not data_has_secrets({"env_vars": {"X": "b"}, "TOKEN": None})


def test_what_is_secret_in_a_line_and_in_plain_data() -> None:
    line = "API_KEY='a b' t.py --token abc -H 'Authorization: Bearer xyz' https://me:pw@host --lr 1"
    assert set(secrets_in_text(line)) >= {"a b", "abc", "xyz", "pw"}
    assert "1" not in secrets_in_text(line)
    assert secrets_in_text("python train.py --lr 1") == []
    given = {"env_vars": {"TOKEN": "a", "X": "b"}, "pip": ["https://u:p@host/s"], "secret": [5, True]}
    assert secrets_in_data(given) == ["a", "p", "5"]


def test_long_lines_cost_little() -> None:
    for line in ("key" * 5000 + "=" * 5000, "--" + "a-" * 5000, "token_" * 3000, "x=" * 5000, "://" * 5000):
        began = time.perf_counter()
        mask_text(line)
        assert time.perf_counter() - began < 2.0


def test_numbers_under_a_name_that_looks_secret() -> None:
    output = {"TOKEN": 123, "pin": {"secret": [1.5, None, True]}, "n": 5}
    assert mask_data(output) == {"TOKEN": MASKED, "pin": {"secret": [MASKED, None, True]}, "n": 5}
    assert data_has_secrets({"TOKEN": 123})


def test_an_option_after_a_switch() -> None:
    assert mask_text("python t.py --verbose --token abcdefgh") == "python t.py --verbose --token •••"
    assert secrets_in_text("python t.py --verbose --token abcdefgh") == ["abcdefgh"]


def test_a_very_long_line_is_searched_to_its_end_and_is_no_secret_itself() -> None:
    line = "python - <<E\n" + "print(1)\n" * 5_000 + "E --token abcdefgh"
    assert secrets_in_text(line) == ["abcdefgh"]
