"""StoredAgentRecords: the agents of a service and the identity that they trust, in the store."""

from __future__ import annotations

import asyncio
import json
import secrets
from typing import Any

from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.control_plane.store import Change, Store
from ray_multicluster_scheduler.control_plane.store.secret_encryption import KEY_FILE, is_undecryptable
from ray_multicluster_scheduler.scheduler.connection.agents.agent_records import AgentRecord

_log = get_logger(__name__)
_AGENT, _IDENTITY = "agent:", "identity"
_SECRET = ("secret", "token", "identity")
"""Fields that would let an attacker impersonate the agent or this control plane."""


class StoredAgentRecords:
    """AgentRecordStore in the database, for a control plane that restarts. Keys are stored encrypted."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def agents(self) -> list[AgentRecord]:
        """Agents that may still run. An agent whose secrets cannot be decrypted is included, because its work may go on
        until its lease ends; it gets a random secret, so that no peer can authenticate as it. Raises StoreError if the
        key exists and cannot be used: no agent may be abandoned before that is fixed."""
        stored = self._store.settings(_AGENT).values()
        if stored:
            self._store.cipher.check_key()
        return [self._agent(json.loads(text)) for text in stored]

    def identity(self) -> bytes | None:
        """Our key and certificate; None if there are none yet."""
        text = self._store.settings(_IDENTITY).get(_IDENTITY)
        if text is None:
            return None
        try:
            pem = self._decrypted(json.loads(text))
        except ValueError:  # written by a version that did not encrypt it
            pem = None
        if pem is None:
            _log.error("our key for agents cannot be decrypted with %s: a new one is made when it is needed", KEY_FILE)
            return None
        return pem.encode()

    async def save(self, agent: AgentRecord) -> None:
        fields = agent.to_dict()
        for name in _SECRET:
            if fields[name]:
                fields[name] = self._store.cipher.encrypt_text(fields[name])
        await self._keep(f"{_AGENT}{agent.agent}", fields)

    def remove(self, agent: str) -> None:
        """Not awaited: if this is lost, the next process waits for the agent in vain, and gives it up after a
        timeout."""
        self._store.write(Change(settings={f"{_AGENT}{agent}": None}))

    async def save_identity(self, pem: bytes) -> None:
        if self.identity() != pem:
            await self._keep(_IDENTITY, self._store.cipher.encrypt_text(pem.decode("ascii")))

    async def _keep(self, key: str, value: Any) -> None:
        await asyncio.wrap_future(self._store.write(Change(settings={key: json.dumps(value).encode()})))

    def _agent(self, fields: dict[str, Any]) -> AgentRecord:
        decrypted = {name: self._decrypted(fields[name]) for name in _SECRET if fields.get(name)}
        fields |= {name: value or "" for name, value in decrypted.items()}
        if None in decrypted.values():
            fields["secret"] = secrets.token_urlsafe()
            _log.error(
                "the secrets of agent %s of cluster %s cannot be decrypted with %s: it cannot reconnect, and what it "
                "runs is lost, at the latest when its lease ends",
                fields["agent"],
                fields["cluster"],
                KEY_FILE,
            )
        return AgentRecord.from_dict(fields)

    def _decrypted(self, value: Any) -> str | None:
        """None if it cannot be decrypted or was never encrypted."""
        text = self._store.cipher.decrypt(value) if isinstance(value, dict) else None
        return text if isinstance(text, str) and not is_undecryptable(text) else None
