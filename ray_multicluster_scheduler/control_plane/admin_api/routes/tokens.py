"""Tokens: who may use the service, and as what."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.control_plane.admin_api.access.audit import record_action
from ray_multicluster_scheduler.control_plane.admin_api.access.rules import Rule
from ray_multicluster_scheduler.control_plane.admin_api.access.tokens import TokenBook, roles_of
from ray_multicluster_scheduler.control_plane.admin_api.routes.request_parsing import access_of, json_of, texts
from ray_multicluster_scheduler.control_plane.admin_api.routes.whole_text import is_text
from ray_multicluster_scheduler.control_plane.admin_api.schemas import tokens as docs
from ray_multicluster_scheduler.control_plane.admin_api.schemas.route_description import described

router = APIRouter(prefix="/api/v1/tokens", tags=["tokens"])


@router.get("", **described(Rule.ADMINISTER, docs.LIST))
async def list_tokens(request: Request) -> dict[str, Any]:
    """All of them, oldest first, also those that have expired; never what one needs to use them."""
    return {"tokens": _book(request).list()}


@router.post("", **described(Rule.ADMINISTER, docs.CREATE))
async def create(request: Request) -> dict[str, Any]:
    """Make one: ``{"user": "alice", "roles": ["submitter"], "note": "", "expires_at": seconds since 1970, or null}``.
    The answer has the token itself, once: it is kept nowhere."""
    book, said = _book(request), await json_of(request)
    for key in said:
        if key not in ("user", "roles", "note", "expires_at"):
            raise ConfigurationError(f"A token has no {key!r}.", next_step="give user, roles, note and expires_at")
    user, note, expires_at = said.get("user"), said.get("note", ""), said.get("expires_at")
    if not isinstance(user, str) or not is_text(user):
        raise ConfigurationError(f"user is {str(user)[:100]!r}.", next_step="name whoever will use the token")
    if "/" in user or user in (".", ".."):
        raise ConfigurationError(
            f"user is {user[:100]!r}, which no address can name.", next_step="use a name without /, other than . and .."
        )
    if not isinstance(note, str) or not is_text(note):
        raise ConfigurationError(f"note is {str(note)[:100]!r}.", next_step="give a text")
    if isinstance(expires_at, bool) or not isinstance(expires_at, (int, float, type(None))):
        raise ConfigurationError(
            f"expires_at is {str(expires_at)[:100]!r}.", next_step="give seconds since 1970, or null for never"
        )
    # In no thread: those may all be busy with reading, and a revocation would wait for them.
    token, text, writing = book.begin_create(user, roles_of(texts(said, "roles")), note, expires_at)
    await book.written(writing)
    about = book.let_in(token)
    await record_action(request, "token create", about["id"], {"user": user, "roles": ",".join(about["roles"])})
    return {**about, "token": text}


@router.delete("/{token_id}", **described(Rule.ADMINISTER, docs.REVOKE))
async def revoke(request: Request, token_id: str, force: bool = False) -> dict[str, Any]:
    """From now on nobody gets in with it, and who is in is put out. The last one of an admin only with ``force``.
    Answered when it is written; if it cannot be now, it holds all the same, and can be said again."""
    book = _book(request)
    about, writing = book.begin_revoke(token_id, force=force)
    await record_action(request, "token revoke", token_id, {"of": about["user"]})
    await book.written(writing)
    return about


def _book(request: Request) -> TokenBook:
    book = access_of(request).book
    if book is None:
        raise ConfigurationError(
            "This service asks nobody for a token (auth: none).", next_step="start it with --auth token"
        )
    return book
