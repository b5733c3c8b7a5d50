"""Create the project's environments: ``.venv`` to develop in, ``.venv-ray`` and ``.venv-ray-old`` for local clusters.

    python3 scripts/setup_env.py dev        .venv: this package, editable, with its [dev] extra; no ray
    python3 scripts/setup_env.py ray        .venv-ray: only what the [full] extra names; not this package
    python3 scripts/setup_env.py ray-old    .venv-ray-old: the same with an older Ray, for one test

Needs only Python and its venv module. An up-to-date environment is recognised by a stamp that holds the requirements it
was made from. One that is a symlink is used as it is. Safe to run concurrently and to interrupt.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST = (3, 11)
STAMP = ".rmcs-stamp.json"
FOLDERS = {"dev": ".venv", "ray": ".venv-ray", "ray-old": ".venv-ray-old"}
OLD_RAY = "ray[default]>=2.52,<2.53"
"""About a year old, and the first with auth tokens (docs/decisions/0017-two-ray-versions-in-tests.md)."""


class SetupError(Exception):
    """A problem that the user has to fix, described by the message."""


def main(arguments: list[str]) -> int:
    kinds = arguments or ["dev", "ray"]
    try:
        if sys.version_info < OLDEST:
            found = ".".join(map(str, sys.version_info[:3]))
            raise SetupError(f"Python {found} at {sys.executable} is too old: 3.11 or newer is needed (make PYTHON=…)")
        for kind in kinds:
            if kind not in FOLDERS:
                raise SetupError(f"no environment is called {kind!r}: choose from {', '.join(FOLDERS)}")
            ensure(kind, ROOT / FOLDERS[kind])
    except SetupError as error:
        print(f"set-up: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("set-up: interrupted; the next run starts it again.", file=sys.stderr)
        return 130
    return 0


def ensure(kind: str, folder: Path) -> None:
    """Return when ``folder`` is up to date; a concurrent call waits for the first."""
    if folder.is_symlink():
        use_as_it_is(folder)
        return
    wanted = digest(kind, folder)
    if is_ready(folder, wanted):
        return
    with (ROOT / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_ready(folder, wanted):
            make(kind, folder, wanted)


def use_as_it_is(folder: Path) -> None:
    """Check a symlinked environment, which others use too: it is neither rebuilt nor installed into."""
    to = folder.resolve()
    if not python_of(folder).exists():
        raise SetupError(f"{folder.name} is a link to {to}, where there is no environment: remove or correct it")
    say(f"{folder.name} is a link and used as it is ({to}); to create one for this checkout, remove the link.")


def digest(kind: str, folder: Path) -> str:
    """A digest of what the environment depends on, such as requirements, but not of linter settings."""
    project = read_project()
    parts = {
        "folder": str(folder),
        "python": list(sys.version_info[:2]),
        "requirements": requirements(kind),
        "project": project if kind == "dev" else None,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def read_project() -> dict[str, object]:
    import tomllib  # Python 3.11 has it; an older one must still be able to load this file and report its version

    with (ROOT / "pyproject.toml").open("rb") as file:
        content = tomllib.load(file)
    return {"build-system": content["build-system"], **content["project"]}


def requirements(kind: str) -> list[str]:
    if kind == "dev":
        return ["--editable", f"{ROOT}[dev]"]
    if kind == "ray-old":
        return [OLD_RAY]
    extras = read_project()["optional-dependencies"]
    assert isinstance(extras, dict)
    return list(extras["full"])


def is_ready(folder: Path, wanted: str) -> bool:
    return python_of(folder).exists() and read_stamp(folder).get("digest") == wanted


def read_stamp(folder: Path) -> dict[str, object]:
    try:
        stamp = json.loads((folder / STAMP).read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def write_stamp(folder: Path, stamp: dict[str, object]) -> None:
    draft = folder / f"{STAMP}.{os.getpid()}"
    draft.write_text(json.dumps(stamp))
    draft.replace(folder / STAMP)


def make(kind: str, folder: Path, wanted: str) -> None:
    """Build from scratch, but only install into a folder that the user created."""
    foreign = folder.exists() and not read_stamp(folder).get("ours", False)
    began = time.monotonic()
    say(f"{'installing into your' if foreign else 'creating'} {folder.name} (once; a minute or two) …")
    if not foreign:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        write_stamp(folder, {"ours": True})  # marks an interrupted build as ours and not ready
        execute([sys.executable, "-m", "venv", str(folder)], "venv failed", VENV_HINT)
    pip = [str(python_of(folder)), "-m", "pip", "install", "-qq", "--no-input", "--disable-pip-version-check"]
    execute([*pip, *requirements(kind)], "pip failed", PIP_HINT)
    write_stamp(folder, {"ours": not foreign, "digest": wanted})
    say(f"{folder.name} is ready after {time.monotonic() - began:.0f} s.")


VENV_HINT = "on Debian and Ubuntu the package python3-venv may be missing"
PIP_HINT = "its output is above; fix the problem and run the same command again"


def execute(command: list[str], failure: str, hint: str) -> None:
    """Run it with its own output; the caller's environment must not leak into the new venv."""
    clean = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    code = subprocess.run(command, env=clean, cwd=ROOT, stdout=sys.stderr, check=False).returncode
    if code != 0:
        raise SetupError(f"{failure} (exit code {code}): {' '.join(command)}\nset-up: {hint}.")


def python_of(folder: Path) -> Path:
    return folder / "bin" / "python"


def say(sentence: str) -> None:
    print(f"set-up: {sentence}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
