"""Where a person's state is, and paths that begin with somebody's home folder."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path

from ray_multicluster_scheduler.common.exception import ConfigurationError

_VARIABLE = "RMCS_HOME"


def rmcs_home(environ: Mapping[str, str] = os.environ) -> Path:
    """The state folder: ``$RMCS_HOME``, by default ``~/.rmcs``. It need not be there. Raises ConfigurationError for one
    that can never be: of a user that there is not, or with a name that is too long."""
    home = expanded(environ.get(_VARIABLE) or "~/.rmcs", _VARIABLE)
    try:
        home.lstat()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            said = f"{_VARIABLE} cannot be the name of a folder: {error.strerror}."
            raise ConfigurationError(said, next_step="give another one") from None
    return home


def expanded(path: str | Path, origin: str) -> Path:
    """The same path, with the home folder that ``~`` or ``~ann`` stands for; ``origin`` has named it. Raises
    ConfigurationError if there is no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        said = f"{origin} names {path}, but {Path(path).parts[0]} is nobody's home folder here."
        raise ConfigurationError(said, next_step="write the path in full") from None
