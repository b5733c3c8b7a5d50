"""Check the packages in our environments for known vulnerabilities, with pip-audit --strict.

    python scripts/audit.py [--pip-audit PROGRAM] [PYTHON …]

Without PYTHON it checks .venv and, if it exists, .venv-ray. pip-audit is installed into a temporary environment of its
own. Exit code 0: every package was checked and none has a known vulnerability; 1: some have; 2: not every package could
be checked.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CLEAN, VULNERABLE, NOT_KNOWN = 0, 1, 2


class NotKnownError(Exception):
    """The check could not be done; the message is the reason."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pip-audit", default=None, help="path of an installed pip-audit")
    parser.add_argument("pythons", nargs="*", metavar="PYTHON")
    given = parser.parse_args(arguments)
    pythons = given.pythons or [str(one) for one in own_pythons() if one.exists()]
    if not pythons:
        print("audit: NOT DONE: there is no environment to check; create one with `make setup`.", file=sys.stderr)
        return NOT_KNOWN
    with tempfile.TemporaryDirectory(prefix="rmcs-audit-") as folder:
        try:
            program = given.pip_audit or install(Path(folder) / "venv")
            found = [one for python in pythons for one in audit(program, python, Path(folder) / "requirements.txt")]
        except NotKnownError as error:
            print(f"audit: NOT DONE: {error}. Whether there are vulnerabilities is not known.", file=sys.stderr)
            return NOT_KNOWN
    for line in found:
        print(line)
    print(f"audit: {len(found)} known vulnerabilities" if found else "audit: no known vulnerability")
    return VULNERABLE if found else CLEAN


def own_pythons() -> list[Path]:
    return [ROOT / folder / "bin" / "python" for folder in (".venv", ".venv-ray")]


def install(folder: Path) -> str:
    """Install pip-audit into an environment of its own, so that it does not add packages to the one it checks."""
    venv.create(folder, with_pip=True)
    done = run([str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "pip-audit"])
    if done.returncode:
        raise NotKnownError(f"pip-audit cannot be installed: {last_line(done.stderr)}")
    return str(folder / "bin" / "pip-audit")


def audit(program: str, python: str, file: Path) -> list[str]:
    """One line for each vulnerability. Raises NotKnownError if not every package was checked."""
    installed = packages(python)
    file.write_text("\n".join(installed) + "\n")
    print(f"audit: {python}: {len(installed)} packages")
    done = run(
        [program, "--strict", "--no-deps", "--disable-pip", "--progress-spinner=off", "--format=json", "-r", str(file)]
    )
    try:
        answers: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        raise NotKnownError(f"pip-audit got no answer: {last_line(done.stderr)}") from None
    skipped = [one["name"] for one in answers if "vulns" not in one]
    if skipped or len(answers) < len(installed):
        raise NotKnownError(f"pip-audit left out {', '.join(skipped) or 'some packages'}")
    found = [
        f"{one['name']} {one['version']}: {flaw['id']}, fixed in {', '.join(flaw['fix_versions']) or 'no version yet'}"
        for one in answers
        for flaw in one["vulns"]
    ]
    if done.returncode and not found:
        raise NotKnownError(f"pip-audit failed: {last_line(done.stderr)}")
    return found


def packages(python: str) -> list[str]:
    """``name==version`` of all installed packages, except editable ones."""
    done = run([python, "-m", "pip", "freeze", "--all", "--exclude-editable"])
    lines = [line for line in done.stdout.splitlines() if line and not line.startswith("#")]
    if done.returncode or not lines:
        raise NotKnownError(f"{python} cannot list its packages: {last_line(done.stderr)}")
    return lines


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotKnownError(str(error)) from error


def last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip().rstrip(".") if lines else "no output"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
