"""Provide promtool, which checks the rules of examples/monitoring and evaluates them on recorded series.

    python3 scripts/setup_promtool.py

The one on the PATH is used. Otherwise it is extracted from Debian's package `prometheus`, which is not installed,
because that would start a server. Safe to run concurrently and to interrupt.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".promtool"
HINT = "put promtool (https://prometheus.io/download) on the PATH, and run the same command again"


def main() -> int:
    try:
        if find() is None:
            make()
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"set-up: promtool cannot be installed: {error}\nset-up: {HINT}.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("set-up: interrupted; the next run starts it again.", file=sys.stderr)
        return 130
    return 0


def find() -> Path | None:
    """The path of promtool. Also called by the tests that use it."""
    named = shutil.which("promtool")
    if named is not None:
        return Path(named)
    own = FOLDER / "promtool"
    return own if own.exists() else None


def make() -> None:
    """Extract promtool; a concurrent call replaces it by the same file."""
    print("set-up: extracting promtool from Debian's package prometheus (once; 20 MB) …", file=sys.stderr, flush=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as draft:
        if os.geteuid() == 0:  # without root, the package lists are used as they are
            _run("apt-get", "-qq", "-o", "DPkg::Lock::Timeout=120", "update", cwd=draft)
        _run("apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", "prometheus", cwd=draft)
        (package,) = Path(draft).glob("prometheus_*.deb")
        _run("dpkg-deb", "--extract", str(package), "out", cwd=draft)
        (Path(draft) / "out" / "usr" / "bin" / "promtool").replace(FOLDER / "promtool")


def _run(*command: str, cwd: str) -> None:
    subprocess.run(command, cwd=cwd, stdout=sys.stderr, check=True)


if __name__ == "__main__":
    sys.exit(main())
