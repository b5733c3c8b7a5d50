"""The token that whoever starts a service finds in its folder, so that nothing has to be set up on one machine."""

from __future__ import annotations

from pathlib import Path

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.control_plane.admin_api.access.roles import Role
from ray_multicluster_scheduler.control_plane.admin_api.access.tokens import Refused, TokenBook
from ray_multicluster_scheduler.control_plane.store.private_file import TOKEN_FILE, read_private, write_private

NOTE = "made by rmcs up"


def first_token(book: TokenBook, folder: Path, user: str) -> str | None:
    """See to it that the folder has a token that lets its owner in. Returns what is to be said, if there is anything.

    Raises ConfigurationError for a file that others can read, or that cannot be written.
    """
    path = folder / TOKEN_FILE
    try:
        before = read_private(path)
    except FileNotFoundError:
        before = None
    if before is not None and not isinstance(book.check(before), Refused):
        return None
    known = [one for one in book.list() if one["note"] == NOTE and one["user"] == user]
    about, text = book.create(user, Role, NOTE)
    try:
        write_private(path, text)
    except OSError as error:
        book.revoke(about["id"], force=True)
        raise ConfigurationError(
            f"{path} cannot be written: {error.strerror}.", next_step="make the state folder writable for you"
        ) from error
    for one in known:  # nobody has it any more: the file was its only place
        book.revoke(one["id"], force=True)
    if before is not None:
        return f"the token in {path} was revoked or had expired; there is a new one in its place"
    if known:
        return f"{path} was lost; there is a new token in its place, and the one before lets nobody in any more"
    return f"{path} has a token for you; programs and commands of your account find it by themselves"
