"""Secrets: how they are recognised in names, texts and data, and how they are masked. All masking goes through here.

- :func:`mask_text`: command lines and other free text, by name (``--token abc``, ``API_KEY=abc``) and address.
- :func:`mask_data`, :func:`mask_config`: plain data, by the names of its keys.
- :func:`item_secrets` with :func:`mask_values`, :func:`mask_stream`: what a cluster returns about an item (errors,
  logs, output), by the values of the item's own secrets. Ray writes the command line of a job into its log.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray_multicluster_scheduler.common.model import TaskDescription

MASKED = "•••"
MIN_SECRET_CHARS = 4
"""Shorter values are not masked by value: they occur in every text."""

_MIN_LINE_CHARS = 8
_MAX_STREAM_SECRETS, _MAX_STREAM_PREFIX = 200, 1_000
"""Of a text in pieces: how many secrets may be cut in two, and how much of each is matched."""
_SWITCHES = frozenset({"true", "false", "none", "null"})

# ---- names

_ENDINGS = re.compile(
    r"(?:token|secret|password|passwd|passphrase|passcode|pwd?|credential|cookie|sess(?:ion)?id|dsn|signature|webhook"
    r"|jwt|otp|key)s?$"
)
"""How a part of a secret's name ends: PGPASSWORD, apikey, ROOTPW."""
_FOLDERS = frozenset({"PWD", "OLDPWD"})
"""Set in every shell: the current and the previous working folder."""
_WORDS = frozenset({"auth", "authorization", "bearer", "creds", "pass", "pat"})
"""Parts that mean a secret as a whole word: not author, path or compass."""
_ANIMALS = re.compile(r"(?:mon|don|tur|hoc|joc|whis)keys?")
_COUNTERS = frozenset(
    "max min num n count total limit per new batch prompt input output context special stop".split()  # noqa: SIM905
)
"""With one of these in the name, tokens are words of a text (``max_tokens``)."""
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_LETTERS = re.compile(r"[A-Za-z]+")
_CONNECTION_STRING = re.compile(r"connection_?string", re.IGNORECASE)


def name_looks_secret(name: str) -> bool:
    """Whether a variable of this name usually holds a secret."""
    if name in _FOLDERS:
        return False
    parts = {one.lower() for one in (*_PART.findall(name), *_LETTERS.findall(name))}
    return any(_part_is_secret(one, parts) for one in parts) or _CONNECTION_STRING.search(name) is not None


def _part_is_secret(part: str, parts: set[str]) -> bool:
    if part in _WORDS or (part == "session" and "aws" in parts):
        return True
    if part == "tokens" and not parts.isdisjoint(_COUNTERS):
        return False
    return _ENDINGS.search(part) is not None and _ANIMALS.fullmatch(part) is None


# ---- text

_ADDRESS_PASSWORD = re.compile(r"(?<![\w+.-])(\w[\w+.-]*://[^/\s:@]*:)([^/\s@]+)(?=@)")
"""A password, as in https://user:password@host."""
_USERINFO = re.compile(r"(?<=://)[^/@\s]+(?=@)")
"""User and password, or a token in the place of both."""
_VALUE = re.compile(r"""(?:"[^"]*"|'[^']*'|[^\s"';|&]+)""")
_ASSIGNMENT = re.compile(r"(?<![\w-])([\w-]+)=")
_HEADER = re.compile(r"(?<![\w-])([\w-]+):\s*(?!//)")
_HEADER_VALUE = re.compile(r"""(?:(?:bearer|basic|digest|token)\s+)?[^\s"';|&]+""", re.IGNORECASE)
_BEARER = re.compile(r"""(?<![\w-])(bearer\s+)([^\s"';|&]+)""", re.IGNORECASE)
"""Headers as given to curl: Authorization: Bearer abc."""
_OPTION = re.compile(r"""(?<![^\s"'])(--?[\w-]+)\s+(?!--?[A-Za-z])""")
_CANDIDATE = re.compile(r"[=@:-]|bearer", re.IGNORECASE)
_MAX_CHARS, _OVERLAP = 20_000, 2_000
"""At most this much of a text is matched at once; :func:`mask_text` masks the rest entirely."""


def mask_text(text: str) -> str:
    """A text, such as a command line, without the values of secrets: ``API_KEY=••• python train.py --token •••``."""
    return _mask_text(text, lambda _: None)


def mask_userinfo(text: str) -> str:
    """A text with masked user information in addresses: https://•••@host."""
    return _USERINFO.sub(MASKED, text)


def text_has_secrets(text: str) -> bool:
    return mask_text(text) != text


def secrets_in_text(text: str) -> list[str]:
    """The values that :func:`mask_text` masks, without their quotes; of a header also its last word."""
    found: list[str] = []
    for at in range(0, max(1, len(text) - _OVERLAP), _MAX_CHARS - _OVERLAP):
        _mask_text(text[at : at + _MAX_CHARS], found.append)
    bare = [one[1:-1] if one[:1] in ("'", '"') and one[-1:] == one[:1] else one for one in found]
    return [*bare, *(one.split()[-1] for one in bare if len(one.split()) > 1)]


def _mask_text(text: str, report: Callable[[str], object]) -> str:
    """``report`` is called with each value that is masked."""
    if not _CANDIDATE.search(text):
        return text
    shown, rest = (text, "") if len(text) <= _MAX_CHARS else (text[:_MAX_CHARS], MASKED)

    def mask_second_group(match: re.Match[str]) -> str:
        report(match[2])
        return f"{match[1]}{MASKED}"

    shown = _mask_quoted(shown, report)
    for name, value in ((_ASSIGNMENT, _VALUE), (_HEADER, _HEADER_VALUE)):
        shown = _mask_named(shown, name, value, report)
    shown = _mask_named(_BEARER.sub(mask_second_group, shown), _OPTION, _VALUE, report)
    return _ADDRESS_PASSWORD.sub(mask_second_group, shown) + rest


def _mask_named(text: str, name: re.Pattern[str], value: re.Pattern[str], report: Callable[[str], object]) -> str:
    """Mask the values behind names that look secret. The value of another name is searched for names again, as in
    ``--reason='password=abc'``."""
    pieces, end = [], 0
    match = name.search(text)
    while match is not None:
        given = value.match(text, match.end()) if name_looks_secret(match[1]) else None
        if given is not None:
            report(given[0])
            pieces += [text[end : match.end()], MASKED]
            end = given.end()
        match = name.search(text, match.end() if given is None else given.end())
    return "".join([*pieces, text[end:]])


# ---- quoted data in a text, as JSON or as Python prints it: {"password": "abc"}
# Quotes may be escaped, as in JSON within JSON, and written as a shell needs them within its own: '"'"', '\''.

_SHELL_QUOTE = r"""'"'"'|'\\''"""
_QUOTE = rf"""(?:{_SHELL_QUOTE}|\\{{0,31}}["'])"""
_QUOTED_NAME = re.compile(rf"({_QUOTE})([\w. /-]{{1,200}})\1\s*:\s*")
_NUMBER = re.compile(r"-?\d[\w.+-]*")
_OPENING = re.compile(_QUOTE)
_QUOTE_OR_NEWLINE = re.compile(rf"\\{{0,31}}(?:{_SHELL_QUOTE})|{_QUOTE}|\n")
_DATA_TOKEN = re.compile(rf"{_QUOTE}|[\[\]{{}}]|{_NUMBER.pattern}")
_COLON = re.compile(r"\s*:")


def _mask_quoted(text: str, report: Callable[[str], object]) -> str:
    """Mask texts and numbers below a quoted name that looks secret, but not true, false and null.

    ``report`` gets each value that ends before the text does, as written and unescaped.
    """
    pieces, end = [], 0
    found = _QUOTED_NAME.search(text)
    while found is not None:
        at = found.end()
        if name_looks_secret(found[2]):
            shown, at = _mask_value(text, at, report)
            pieces += [text[end : found.end()], shown]
            end = at
        found = _QUOTED_NAME.search(text, at)
    return "".join([*pieces, text[end:]])


def _mask_value(text: str, at: int, report: Callable[[str], object]) -> tuple[str, int]:
    """The masked form of the value that begins there, and where the value ends."""
    if text[at : at + 1] in ("[", "{"):
        return MASKED, _end_of_container(text, at, report)
    opening = _OPENING.match(text, at)
    if opening is not None:
        content, end, closed = _quoted(text, opening)
        if closed:
            _report_quoted(content, opening[0], report)
        return (f"{opening[0]}{MASKED}{opening[0] if closed else ''}" if content else text[at:end]), end
    number = _NUMBER.match(text, at)
    if number is None:
        return "", at
    report(number[0])
    return MASKED, number.end()


def _quoted(text: str, opening: re.Match[str]) -> tuple[str, int, bool]:
    """The content of these quotes, where they end, and whether they are closed; if not, they end with the line."""
    for mark in _QUOTE_OR_NEWLINE.finditer(text, opening.end()):
        if mark[0] == "\n":
            return text[opening.end() : mark.start()], mark.start(), False
        if _closes(mark[0], opening[0]):
            begin = mark.end() - len(opening[0])
            return text[opening.end() : begin], mark.end(), True
    return text[opening.end() :], len(text), False


def _closes(mark: str, opening: str) -> bool:
    """A quote that opens with n backslashes closes with n, plus 2n + 2 for each backslash of the content before it. A
    quote within the content has 2n + 1."""
    shell = mark.lstrip("\\")
    if len(shell) > 1 or len(opening.lstrip("\\")) > 1:
        return shell == opening
    if mark[-1] != opening[-1]:
        return False
    return (len(mark) - 1) % (2 * len(opening)) == len(opening) - 1


def _end_of_container(text: str, at: int, report: Callable[[str], object]) -> int:
    """Position where the bracket at this position is closed, else the end of the text; reports all values in it."""
    depth = 0
    token = _DATA_TOKEN.search(text, at)
    while token is not None:
        end = token.end()
        if token[0] in "[]{}":
            depth += 1 if token[0] in "[{" else -1
        elif _NUMBER.fullmatch(token[0]):
            report(token[0])
        else:
            content, end, closed = _quoted(text, token)
            if closed and not _COLON.match(text, end):
                _report_quoted(content, token[0], report)
        if depth == 0:
            return end
        token = _DATA_TOKEN.search(text, end)
    return len(text)


def _report_quoted(content: str, quote: str, report: Callable[[str], object]) -> None:
    if content:
        report(content)
    plain = re.sub(_SHELL_QUOTE, "'", content)
    for _ in range(len(quote).bit_length()):
        try:
            plain = str(json.loads(f'"{plain}"', strict=False))
        except ValueError:
            break
    if plain != content:
        report(plain)


# ---- plain data


def mask_data(value: Any) -> Any:
    """Plain data with its secrets masked."""
    return replace_secrets(value, lambda _: MASKED)


def mask_config(value: Any) -> Any:
    """Configuration: like :func:`mask_data`, but keeps empty texts, numbers and what is nested below a secret name (an
    owner may be called so), and masks all user information of addresses."""
    if isinstance(value, Mapping):
        return {
            name: MASKED if one and isinstance(one, str) and name_looks_secret(str(name)) else mask_config(one)
            for name, one in value.items()
        }
    if isinstance(value, list):
        return [mask_config(one) for one in value]
    return mask_userinfo(value) if isinstance(value, str) else value


def data_has_secrets(value: Any) -> bool:
    return bool(secrets_in_data(value))


def secrets_in_data(value: Any) -> list[str]:
    """The texts and numbers in plain data that look like secrets, and the passwords of addresses."""
    found: list[str] = []
    _collect_secrets(value, found)
    return found


def _collect_secrets(value: Any, found: list[str], *, secret: bool = False) -> None:
    if isinstance(value, str):
        found.extend([value] if secret else [])
        found.extend(one[2] for one in _ADDRESS_PASSWORD.finditer(value))
    elif isinstance(value, Mapping):
        for name, one in value.items():
            _collect_secrets(one, found, secret=secret or _is_secret_key(name))
    elif isinstance(value, (list, tuple)):
        for one in value:
            _collect_secrets(one, found, secret=secret)
    elif secret and _is_number(value):
        found.append(str(value))


def replace_secrets(value: Any, replacement: Callable[[Any], Any], *, secret: bool = False) -> Any:
    """Plain data in which ``replacement`` has converted each text or number below a name that looks secret, and each
    text that contains the password of an address."""
    if isinstance(value, str):
        return replacement(value) if secret or _has_password(value) else value
    if isinstance(value, Mapping):
        return {
            name: replace_secrets(one, replacement, secret=secret or _is_secret_key(name))
            for name, one in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [replace_secrets(one, replacement, secret=secret) for one in value]
    return replacement(value) if secret and _is_number(value) else value


def _is_secret_key(name: object) -> bool:
    return isinstance(name, str) and name_looks_secret(name)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)  # a truth value is not a secret


def _has_password(text: str) -> bool:
    return "://" in text and "@" in text and _ADDRESS_PASSWORD.search(text) is not None


# ---- the secrets of an item, by value


def item_secrets(task: TaskDescription) -> tuple[str, ...]:
    """Probable secrets in the environment, command line and metadata of an item; the longest first."""
    if task.job is None and not task.runtime_env:
        return ()
    found = secrets_in_data(task.runtime_env) if task.runtime_env else []
    if task.job is not None:
        found += [*secrets_in_text(task.job.entrypoint), *secrets_in_data(task.job.metadata)]
    values = {text for one in found for text in _spellings(one)}
    return tuple(sorted((one for one in values if _is_maskable(one)), key=len, reverse=True))


def mask_values(text: str, secrets: Iterable[str]) -> str:
    """A text without these values; the longest must come first, as :func:`item_secrets` returns them."""
    for one in secrets:
        if one in text:
            text = text.replace(one, MASKED)
    return text


async def mask_stream(pieces: AsyncIterator[str], secrets: Sequence[str]) -> AsyncGenerator[str, None]:
    """A text in pieces without these values. The possible beginning of a value is held back until more text comes."""
    held = ""
    async for piece in pieces:
        text = mask_values(held + piece, secrets)
        keep = _partial_match(text, secrets)
        held, ready = text[len(text) - keep :], text[: len(text) - keep]
        if ready:
            yield ready
    if held:
        yield held


def _partial_match(text: str, secrets: Sequence[str]) -> int:
    """Number of last characters that may be the beginning of a secret (of a long one, of its first part)."""
    prefixes = (one[:_MAX_STREAM_PREFIX] for one in secrets[:_MAX_STREAM_SECRETS])
    return max((_partial_match_of(text, one) for one in prefixes), default=0)


def _partial_match_of(text: str, secret: str) -> int:
    at = text.find(secret[0], max(0, len(text) - len(secret) + 1))
    while at >= 0:
        if secret.startswith(text[at:]):
            return len(text) - at
        at = text.find(secret[0], at + 1)
    return 0


_PERCENT_CODES = re.compile("(?:%[0-9A-Fa-f]{2})+")


def _decode_percent(match: re.Match[str]) -> str:
    return bytes.fromhex(match[0].replace("%", "")).decode("utf-8", "replace")


def _spellings(secret: str) -> Iterable[str]:
    """As it is, decoded as in an address, encoded as in JSON, and line by line."""
    yield secret
    yield _PERCENT_CODES.sub(_decode_percent, secret)
    yield json.dumps(secret)[1:-1]
    for line in secret.splitlines():
        if len(line) >= _MIN_LINE_CHARS:
            yield line


def _is_maskable(secret: str) -> bool:
    return len(secret) >= MIN_SECRET_CHARS and secret.lower() not in _SWITCHES and MASKED not in secret
