"""Cover: nothing leaves in a bug report that is a secret here, or looks like one."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ray_multicluster_scheduler.common.redaction import (
    MASKED,
    mask_text,
    mask_userinfo,
    name_looks_secret,
)

LEFT_OUT = "What stood here could be a secret, so it was left out.\n"
_LEAST = 4
"""Shorter ones stand in every text; they protect nothing anyway."""
_LEAST_NAMED = 6
"""The same for what is only called like a secret."""
_MOST = 19_000
"""Of one text or line. A longer one than 20,000 characters would not be looked through to its end."""
_FILE_MOST = 4096
_TOKEN = re.compile(r"rmcs_[0-9A-Za-z]+_[0-9a-f]{16,}")
"""As a service makes them, whosever they are."""
_HOW_TO_ASK = ("token", "none", "file", None)
_FIXED_POINT = 4


class Cover:
    """Knows the secrets of this machine by their values; others it knows by what they are called."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = {one.strip() for one in secrets}
        self._known = sorted((one for one in known if len(one) >= _LEAST), key=len, reverse=True)

    def data(self, value: Any, *, secret: bool = False) -> Any:
        """Plain data without them."""
        if isinstance(value, str):
            return MASKED if secret and value else self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(name)): self._named(str(name), one, secret) for name, one in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.data(one, secret=secret) for one in value]
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return MASKED if secret and number else value

    def _named(self, name: str, value: Any, secret: bool) -> Any:
        if name == "auth" and (value is None or isinstance(value, str)) and value in _HOW_TO_ASK:
            return value  # how it is asked for, no secret
        return self.data(value, secret=secret or name_looks_secret(name))

    def lines(self, text: str) -> str:
        """A longer text, such as a log; a line that is JSON is looked through as data."""
        return "\n".join(map(self._line, text.split("\n")))

    def _line(self, line: str) -> str:
        data = _json(line)
        return self.text(line) if data is None else json.dumps(self.data(data), ensure_ascii=False)

    def text(self, text: str) -> str:
        """One text; it is covered until there is nothing left to cover."""
        if len(text) > _MOST:
            text = f"{text[:_MOST]} […]"
        for _ in range(_FIXED_POINT):
            before, text = text, self._once(text)
            if text == before:
                return text
        return MASKED

    def _once(self, text: str) -> str:
        for secret in self._known:
            text = text.replace(secret, MASKED)
        return mask_userinfo(mask_text(_TOKEN.sub(MASKED, text)))

    def passes(self, text: str) -> bool:
        """The last look at a whole file, whoever wrote it: is there nothing that would be covered?"""
        whole = _json(text)
        clean = self.lines(text) == text if whole is None else bool(self.data(whole) == whole)
        spelled = (one for secret in self._known for one in (secret, json.dumps(secret)[1:-1]))
        return clean and not any(one in text for one in spelled) and _TOKEN.search(text) is None


def _json(text: str) -> Any:
    """An object or a list; None: it is none."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def secrets_here(home: Path, config: Any, environ: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Of the state folder, of the environment, and of the clusters of a configuration, if there is one."""
    from ray_multicluster_scheduler.control_plane.store.private_file import TOKEN_FILE
    from ray_multicluster_scheduler.control_plane.store.secret_encryption import KEY_FILE

    for path in (home / TOKEN_FILE, home / KEY_FILE, environ.get("RMCS_TOKEN_FILE")):
        yield from _of_file(path)
    yield from (value for name, value in environ.items() if _names_a_secret(name, value))
    for cluster in () if config is None else config.clusters:
        yield from _of_cluster(cluster, environ)


def _of_cluster(cluster: Any, environ: Mapping[str, str]) -> Iterator[str]:
    from ray_multicluster_scheduler.common.exception import ConfigurationError

    if cluster.auth_token is not None and "${" not in cluster.auth_token.get_secret_value():
        yield cluster.auth_token.get_secret_value()
    with suppress(ConfigurationError):  # if its variable or its file is not here, it is not known here
        yield cluster.resolve_token(environ) or ""
    variables = cluster.runtime_env.get("env_vars")
    for name, value in variables.items() if isinstance(variables, Mapping) else ():
        if _names_a_secret(str(name), str(value)):
            yield str(value)


def _names_a_secret(name: str, value: str) -> bool:
    """A path is where it is, not what it is; and a switch, such as USE_TOKEN=true, is none."""
    return len(value) >= _LEAST_NAMED and name_looks_secret(name) and not value.startswith(("/", "~", "./"))


def _of_file(path: Path | str | None) -> Iterator[str]:
    if path is None:
        return
    try:
        with Path(path).expanduser().open("rb") as file:
            yield file.read(_FILE_MOST).decode("utf-8", "replace")
    except OSError:
        return
