"""How a call's answer travels from the worker to the agent: one flat byte string.

Ray stores plain ``bytes`` without another copy, and the agent never unpickles what users return.
"""

from __future__ import annotations

import json
import struct
from typing import Any

_HEAD = struct.Struct("!I")


def pack(head: dict[str, Any], payload: bytes = b"") -> bytes:
    """A small JSON head and the pickled value or exception."""
    text = json.dumps(head, separators=(",", ":")).encode()
    return b"".join((_HEAD.pack(len(text)), text, payload))


def unpack(data: bytes) -> tuple[dict[str, Any], memoryview]:
    """The head, and a view of the payload."""
    view = memoryview(data)
    (length,) = _HEAD.unpack_from(view)
    start = _HEAD.size + length
    return json.loads(bytes(view[_HEAD.size : start])), view[start:]
