"""What is refused at the door, before any handler hears of it: a problem document, as handlers answer with."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import NamedTuple

from starlette.types import Scope, Send

_CODES = {400: "BAD_REQUEST", 401: "NOT_LET_IN"}


class Refusal(NamedTuple):
    status: int
    message: str
    next_step: str
    error: str = "NotAllowedError"


async def refuse(scope: Scope, send: Send, refusal: Refusal) -> None:
    """A web socket that is refused is never opened; its client sees the same answer, where the server can give it."""
    status, message, next_step, error = refusal
    said = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "error": error}
    text = f"{message.rstrip('.')}. What to do: {next_step}"
    said["code"] = _CODES.get(status, "NOT_ALLOWED" if error == "NotAllowedError" else "CONFIGURATION")
    body = json.dumps({**said, "detail": text, "message": message, "next_step": next_step}).encode()
    headers = [(b"content-type", b"application/problem+json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if scope["type"] == "http":
        kind = "http.response"
    elif "websocket.http.response" in scope.get("extensions", {}):
        kind = "websocket.http.response"
    else:
        await send({"type": "websocket.close", "code": 1008, "reason": message[:100]})
        return
    await send({"type": f"{kind}.start", "status": status, "headers": headers})
    await send({"type": f"{kind}.body", "body": body})
