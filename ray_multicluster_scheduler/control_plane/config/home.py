"""Where a person's state is."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def rmcs_home(environ: Mapping[str, str] = os.environ) -> Path:
    """The state folder: ``$RMCS_HOME``, by default ``~/.rmcs``."""
    return Path(environ.get("RMCS_HOME") or "~/.rmcs").expanduser()
