"""A SQLite VFS over the real file system that counts syncs, and can report a full or broken disk."""

from __future__ import annotations

import uuid
from typing import Any

import apsw


class WatchedDisk(apsw.VFS):
    """Give its ``name`` as ``vfs``. ``full``: nothing more can be written. ``synced`` has one entry for each sync."""

    def __init__(self) -> None:
        self.name = f"watched-{uuid.uuid4().hex}"
        self.full = False
        self.broken = False
        self.synced: list[str] = []
        super().__init__(self.name, "")

    def xOpen(self, name: Any, flags: list[int]) -> WatchedFile:  # noqa: N802 - SQLite's name
        return WatchedFile(self, name, flags)


class WatchedFile(apsw.VFSFile):
    """One file there."""

    def __init__(self, disk: WatchedDisk, name: Any, flags: list[int]) -> None:
        self._disk = disk
        self._kind = "wal" if flags[0] & apsw.SQLITE_OPEN_WAL else "other"
        if flags[0] & apsw.SQLITE_OPEN_MAIN_DB:
            self._kind = "db"
        super().__init__("", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        if self._disk.full:
            raise apsw.FullError("the watched disk is full")
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:  # noqa: N802
        if self._disk.broken:
            raise apsw.IOError("the watched disk is broken")
        super().xSync(flags)
        self._disk.synced.append(self._kind)
