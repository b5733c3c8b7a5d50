"""What a doctor finds: one line for each thing that was looked at."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    ok = "ok"
    warning = "warning"
    wrong = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """``mend`` says how to mend what is not well; ``code`` is one that `rmcs explain CODE` knows."""

    about: str
    verdict: Verdict
    says: str
    mend: str = ""
    code: str = ""

    def to_dict(self) -> dict[str, str]:
        said = (self.about, str(self.verdict), self.says, self.mend, self.code)
        return dict(zip(("about", "verdict", "says", "mend", "code"), said, strict=True))


def well(about: str, says: str) -> Finding:
    return Finding(about, Verdict.ok, says)


def doubtful(about: str, says: str, mend: str, code: str = "") -> Finding:
    return Finding(about, Verdict.warning, says, mend, code)


def wrong(about: str, says: str, mend: str, code: str = "") -> Finding:
    return Finding(about, Verdict.wrong, says, mend, code)
