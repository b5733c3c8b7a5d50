"""Install what runs the examples of docs/api.md: curl, Node 18 or newer with npm, and two npm packages.

    python3 scripts/setup_node.py

Programs on the PATH are used. Missing ones are installed as Debian packages if apt-get exists and we are root;
otherwise the error explains how to install them. The npm packages that replace a browser go into
tests/javascript/node_modules, with a stamp of their package.json. Safe to run concurrently and to interrupt.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "javascript"
OLDEST = 18
STAMP = ".rmcs-stamp.json"
DEBIAN = {"curl": "curl", "node": "nodejs", "npm": "npm"}
"""The Debian package of each program."""
NPM = ["npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error"]


class SetupError(Exception):
    """A problem that the user has to fix, described by the message."""


def main() -> int:
    try:
        if not is_ready():
            with (FOLDER / ".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                make()
    except SetupError as error:
        print(f"set-up: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("set-up: interrupted; the next run starts it again.", file=sys.stderr)
        return 130
    return 0


def is_ready() -> bool:
    """Is everything installed? Also called by the test that runs the examples."""
    return not missing_programs() and read_stamp().get("digest") == digest()


def make() -> None:
    """Install the npm packages; a concurrent call finds them installed."""
    missing = missing_programs()
    if missing:
        install(missing)
    if read_stamp().get("digest") == digest():
        return
    say("installing the npm packages of the JavaScript examples (once; seconds) …")
    modules = FOLDER / "node_modules"
    shutil.rmtree(modules, ignore_errors=True)
    execute(NPM, FOLDER, "npm failed", "its output is above; fix the problem and run the same command again")
    draft = modules / f"{STAMP}.{os.getpid()}"
    draft.write_text(json.dumps({"digest": digest()}))
    draft.replace(modules / STAMP)


def digest() -> str:
    """A digest of what node_modules depends on."""
    return hashlib.sha256((FOLDER / "package.json").read_bytes()).hexdigest()


def read_stamp() -> dict[str, object]:
    try:
        stamp = json.loads((FOLDER / "node_modules" / STAMP).read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def missing_programs() -> list[str]:
    """Programs that are not on the PATH. Raises SetupError for a Node that is too old, which is not replaced."""
    node = shutil.which("node")
    if node is not None and (version := node_version(node)) < OLDEST:
        raise SetupError(f"Node {version} at {node} is too old: {OLDEST} or newer is needed, first on the PATH.")
    return [program for program in DEBIAN if shutil.which(program) is None]


def node_version(node: str) -> int:
    done = subprocess.run([node, "--version"], capture_output=True, text=True, check=False)
    number = done.stdout.strip().removeprefix("v").partition(".")[0]
    return int(number) if number.isdigit() else 0


def install(programs: list[str]) -> None:
    """Install Debian packages. Raises SetupError if the user has to do that."""
    packages = [DEBIAN[program] for program in programs]
    hint = (
        f"install {', '.join(programs)} (Debian: apt-get install {' '.join(packages)}), and run the same command again"
    )
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise SetupError(f"{', '.join(programs)}: not on the PATH. What to do: {hint}.")
    say(f"installing {', '.join(packages)} with apt-get (once; a minute) …")
    apt = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=120"]
    execute([*apt, "update"], ROOT, "apt-get failed", hint)
    execute([*apt, "install", "--yes", "--no-install-recommends", *packages], ROOT, "apt-get failed", hint)
    still = missing_programs()
    if still:
        raise SetupError(f"{', '.join(still)}: still not on the PATH. What to do: {hint}.")


def execute(command: list[str], folder: Path, failure: str, hint: str) -> None:
    """Run it with its own output."""
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    code = subprocess.run(command, cwd=folder, env=env, stdout=sys.stderr, check=False).returncode
    if code != 0:
        raise SetupError(f"{failure} (exit code {code}): {' '.join(command)}\nset-up: {hint}.")


def say(sentence: str) -> None:
    print(f"set-up: {sentence}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
