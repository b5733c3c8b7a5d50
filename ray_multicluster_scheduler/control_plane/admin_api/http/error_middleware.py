"""Unexpected: a defect is answered with a problem document that names its place in the log, and nothing else."""

from __future__ import annotations

import json
import logging
import secrets
from http import HTTPStatus

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ray_multicluster_scheduler.common.logging import get_logger

_log = get_logger(__name__)
TOO_DEEP = "What was sent is nested too deeply."


class Unexpected:
    """Around everything else. What the answer may not tell, since it may be a secret, is in the log."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def noted(message: Message) -> None:
            nonlocal begun
            if not begun and _log.isEnabledFor(logging.DEBUG):
                _log.debug("%s %r: %s", scope["method"], scope["path"], message.get("status"))
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except ClientDisconnect:
            _log.debug("%s %s: whoever asked is gone", scope["method"], scope["path"])
        except RecursionError:
            if begun:
                raise
            _log.warning("%s %s: nested too deeply, or a defect", scope["method"], scope["path"], exc_info=True)
            await _answer(send, 422, "ConfigurationError", "TOO_DEEP", TOO_DEEP, "send it flatter")
        except Exception:
            name = secrets.token_hex(4)
            _log.exception("defect %s: %s %s", name, scope["method"], scope["path"])
            if begun:
                raise  # half an answer must not look like a whole one
            sentence = f"The service has a defect; its log calls it {name}."
            step = f"look for {name} in the log of the service, and report it"
            await _answer(send, 500, "SchedulerError", "DEFECT", sentence, step, name)


async def _answer(
    send: Send, status: int, error: str, code: str, sentence: str, next_step: str, name: str | None = None
) -> None:
    said = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "code": code, "error": error}
    said.update(detail=f"{sentence} What to do: {next_step}", message=sentence, next_step=next_step)
    if name is not None:
        said["id"] = name
    body = json.dumps(said).encode()
    headers = [(b"content-type", b"application/problem+json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
