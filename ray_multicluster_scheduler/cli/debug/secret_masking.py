"""DumpMasker: masks the secrets of this machine, and what looks like one, in a debug dump."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ray_multicluster_scheduler.common.redaction import MASKED, mask_text, mask_userinfo, name_looks_secret

LEFT_OUT = "It may contain a secret, so it was left out.\n"
_MIN_LENGTH = 4
"""Shorter secrets occur in any text, and protect nothing."""
_MIN_NAMED_LENGTH = 6
"""The same for values that only have the name of a secret."""
_MAX_LINE = 19_000
"""Longer lines are cut: patterns are not searched beyond 20,000 characters."""
_MAX_FILE = 4096
_TOKEN = re.compile(r"rmcs_[0-9A-Za-z]+_[0-9a-f]{16,}")
"""Tokens of any service."""
_AUTH_METHODS = ("token", "none", "file", None)
_MAX_PASSES = 4


class DumpMasker:
    """Recognizes the secrets of this machine by their values, and others by their names and formats."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = {one.strip() for one in secrets}
        self._known = sorted((one for one in known if len(one) >= _MIN_LENGTH), key=len, reverse=True)

    def mask_data(self, value: Any, *, secret: bool = False) -> Any:
        """Plain data, masked."""
        if isinstance(value, str):
            return MASKED if secret and value else self.mask_text(value)
        if isinstance(value, Mapping):
            return {self.mask_text(str(name)): self._named(str(name), one, secret) for name, one in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.mask_data(one, secret=secret) for one in value]
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return MASKED if secret and number else value

    def _named(self, name: str, value: Any, secret: bool) -> Any:
        if name == "auth" and (value is None or isinstance(value, str)) and value in _AUTH_METHODS:
            return value  # an authentication method, no secret
        return self.mask_data(value, secret=secret or name_looks_secret(name))

    def mask_lines(self, text: str) -> str:
        """Several lines, such as a log; a line that is JSON is masked as data."""
        return "\n".join(map(self._line, text.split("\n")))

    def _line(self, line: str) -> str:
        data = _json(line)
        return self.mask_text(line) if data is None else json.dumps(self.mask_data(data), ensure_ascii=False)

    def mask_text(self, text: str) -> str:
        """One line, masked until nothing is left to mask."""
        if len(text) > _MAX_LINE:
            text = f"{text[:_MAX_LINE]} […]"
        for _ in range(_MAX_PASSES):
            before, text = text, self._mask_once(text)
            if text == before:
                return text
        return MASKED

    def _mask_once(self, text: str) -> str:
        for secret in self._known:
            text = text.replace(secret, MASKED)
        return mask_userinfo(mask_text(_TOKEN.sub(MASKED, text)))

    def is_clean(self, text: str) -> bool:
        """The final check of a file: is there nothing left to mask?"""
        data = _json(text)
        clean = self.mask_lines(text) == text if data is None else bool(self.mask_data(data) == data)
        spellings = (one for secret in self._known for one in (secret, json.dumps(secret)[1:-1]))
        return clean and not any(one in text for one in spellings) and _TOKEN.search(text) is None


def _json(text: str) -> Any:
    """An object or a list; None: it is neither."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def local_secrets(home: Path, config: Any, environ: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Secrets in the state folder, the environment, and the configuration, if there is one."""
    from ray_multicluster_scheduler.control_plane.store.private_file import TOKEN_FILE
    from ray_multicluster_scheduler.control_plane.store.secret_encryption import KEY_FILE

    for path in (home / TOKEN_FILE, home / KEY_FILE, environ.get("RMCS_TOKEN_FILE")):
        yield from _from_file(path)
    yield from (value for name, value in environ.items() if _is_secret(name, value))
    for cluster in () if config is None else config.clusters:
        yield from _from_cluster(cluster, environ)


def _from_cluster(cluster: Any, environ: Mapping[str, str]) -> Iterator[str]:
    from ray_multicluster_scheduler.common.exception import ConfigurationError

    if cluster.auth_token is not None and "${" not in cluster.auth_token.get_secret_value():
        yield cluster.auth_token.get_secret_value()
    with suppress(ConfigurationError):  # its variable or file may not exist here
        yield cluster.resolve_token(environ) or ""
    variables = cluster.runtime_env.get("env_vars")
    for name, value in variables.items() if isinstance(variables, Mapping) else ():
        if _is_secret(str(name), str(value)):
            yield str(value)


def _is_secret(name: str, value: str) -> bool:
    """Paths and short switches, such as USE_TOKEN=true, are no secrets."""
    return len(value) >= _MIN_NAMED_LENGTH and name_looks_secret(name) and not value.startswith(("/", "~", "./"))


def _from_file(path: Path | str | None) -> Iterator[str]:
    if path is None:
        return
    try:
        with Path(path).expanduser().open("rb") as file:
            yield file.read(_MAX_FILE).decode("utf-8", "replace")
    except OSError:
        return
