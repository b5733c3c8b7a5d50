"""A user's project on disk, and forgetting that it was ever imported."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write(root: Path, files: dict[str, str]) -> Path:
    """Files by name, folders made as needed."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    importlib.invalidate_caches()
    return root


@contextmanager
def running_in(root: Path) -> Iterator[None]:
    """A program that was started in ``root``. What it imported from there is forgotten afterwards."""
    path = list(sys.path)
    sys.path.insert(0, str(root))
    try:
        yield
    finally:
        for name, module in list(sys.modules.items()):
            file, folders = getattr(module, "__file__", None), getattr(module, "__path__", ())
            if any(str(place).startswith(f"{root}/") for place in (file, *folders)):
                del sys.modules[name]
        sys.path[:] = path
        importlib.invalidate_caches()
