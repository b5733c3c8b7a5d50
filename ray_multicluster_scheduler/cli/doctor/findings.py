"""Finding: the result of one check of `rmcs doctor`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum


class Verdict(StrEnum):
    ok = "ok"
    warning = "warning"
    wrong = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """``fix`` says how to solve a problem; ``code`` is one that `rmcs explain CODE` knows."""

    about: str
    verdict: Verdict
    says: str
    fix: str = ""
    code: str = ""

    def to_dict(self) -> dict[str, str]:
        return {key: str(one) for key, one in asdict(self).items()}


def ok(about: str, says: str) -> Finding:
    return Finding(about, Verdict.ok, says)


def warning(about: str, says: str, fix: str, code: str = "") -> Finding:
    return Finding(about, Verdict.warning, says, fix, code)


def problem(about: str, says: str, fix: str, code: str = "") -> Finding:
    return Finding(about, Verdict.wrong, says, fix, code)


def split_sentence(sentence: str) -> tuple[str, str]:
    """The sentence of a service, split into what is wrong and what to do."""
    says, _, fix = sentence.partition(" What to do: ")
    return says, fix
