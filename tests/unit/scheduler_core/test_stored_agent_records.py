"""StoredMemory: agents and the key that they trust outlive the process."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ray_multicluster_scheduler.common.exception import StoreError
from ray_multicluster_scheduler.control_plane.store import Change, SqliteStore
from ray_multicluster_scheduler.control_plane.store.secret_encryption import KEY_FILE, UNDECRYPTABLE
from ray_multicluster_scheduler.scheduler.connection.agents.agent_records import AgentRecord, NoAgentRecords
from ray_multicluster_scheduler.scheduler.connection.agents.tls_identity import make_identity
from ray_multicluster_scheduler.scheduler.scheduler_core.stored_agent_records import StoredAgentRecords

AGENT = AgentRecord("a", "rmcs-agent-cp-a-1-1", "secret", "127.0.0.1", 4242)


async def test_the_next_process_knows_the_agents_and_the_key(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    memory = StoredAgentRecords(store)
    assert (memory.agents(), memory.identity()) == ([], None)
    other = AgentRecord("b", "rmcs-agent-cp-b-1-2", "other", "10.0.0.7", 4243, tls=True, why="it has a dashboard")
    await memory.save(AGENT)
    await memory.save(other)
    await memory.save_identity(b"pem")
    await memory.save_identity(b"pem")
    memory.remove(AGENT.agent)
    memory.remove("never was")
    store.close()
    store = SqliteStore(tmp_path)
    memory = StoredAgentRecords(store)
    assert (memory.agents(), memory.identity()) == ([other], b"pem")
    store.close()


async def test_a_later_version_may_write_more_of_an_agent(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    fields = {**AGENT.to_dict(), "secret": store.cipher.encrypt_text("secret"), "mood": "good"}
    store.write(Change(settings={f"agent:{AGENT.agent}": json.dumps(fields).encode()})).result()
    assert StoredAgentRecords(store).agents() == [AGENT]
    store.close()


def dialled() -> AgentRecord:
    """One with all that another user must not know."""
    pem = make_identity().pem.decode()
    return replace(AGENT, secret="its-own-secret", token="once-only", carrier="dial_in", tls=True, identity=pem)


def file_contents(folder: Path) -> bytes:
    return b"".join(one.read_bytes() for one in folder.glob("rmcs.db*"))


async def test_the_database_alone_reveals_no_key(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    memory, agent, ours = StoredAgentRecords(store), dialled(), make_identity().pem
    await memory.save_identity(ours)
    await memory.save(replace(agent, away_s=3.0))
    await memory.save(agent)
    other = replace(agent, agent="rmcs-agent-cp-a-1-2")
    await memory.save(other)
    memory.remove(other.agent)
    assert (tmp_path / "rmcs.db-wal").stat().st_size
    secrets = (b"PRIVATE KEY", b"its-own-secret", b"once-only", *(ours + agent.identity.encode()).splitlines()[1:-1])
    assert [one for one in secrets if one in file_contents(tmp_path)] == []
    store.close()
    assert agent.agent.encode() in file_contents(tmp_path), "it is there, but for what is sealed"
    assert [one for one in secrets if one in file_contents(tmp_path)] == []
    store = SqliteStore(tmp_path)
    assert (StoredAgentRecords(store).agents(), StoredAgentRecords(store).identity()) == ([agent], ours)
    store.close()


async def test_what_is_forgotten_is_overwritten(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    store.write(Change(settings={"one": b"written-long-ago" * 20, "two": b"stays"})).result()
    store.write(Change(settings={"one": None})).result()
    store.close()
    assert b"written-long-ago" not in file_contents(tmp_path)
    assert b"stays" in file_contents(tmp_path)


@pytest.mark.parametrize("how", ["the key is gone", "it was never sealed"])
async def test_agents_with_undecryptable_secrets_are_awaited_but_cannot_authenticate(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    store = SqliteStore(tmp_path)
    agent = dialled()
    if how == "the key is gone":
        await StoredAgentRecords(store).save(agent)
        await StoredAgentRecords(store).save_identity(make_identity().pem)
        (tmp_path / KEY_FILE).unlink()
    else:
        plain = {f"agent:{agent.agent}": json.dumps(agent.to_dict()).encode(), "identity": make_identity().pem}
        store.write(Change(settings=plain)).result()
    store.close()
    store = SqliteStore(tmp_path)
    memory = StoredAgentRecords(store)
    (found,), (again,) = memory.agents(), memory.agents()
    assert replace(found, secret="") == replace(agent, secret="", token="", identity="")
    assert len(found.secret) > 20
    assert found.secret not in (agent.secret, again.secret, UNDECRYPTABLE), "nobody can know it"
    assert f"agent {agent.agent} of cluster a cannot be decrypted with secret.key" in caplog.text
    assert memory.identity() is None
    await memory.save_identity(b"another")
    assert memory.identity() == b"another"
    store.close()


async def test_no_agent_records_accepts_all_calls() -> None:
    memory = NoAgentRecords()
    await memory.save(AGENT)
    memory.remove(AGENT.agent)
    await memory.save_identity(b"pem")


async def test_a_key_that_is_there_and_cannot_be_used_is_not_taken_for_lost(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    await StoredAgentRecords(store).save(AGENT)
    store.close()
    key = tmp_path / KEY_FILE
    key.chmod(0o640)  # as after a restore from a backup
    store = SqliteStore(tmp_path)
    with pytest.raises(StoreError, match="cannot be used"):
        StoredAgentRecords(store).agents()
    key.chmod(0o600)
    assert StoredAgentRecords(store).agents() == [AGENT], "nothing of it was given up meanwhile"
    store.close()
