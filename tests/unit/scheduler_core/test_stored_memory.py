"""StoredMemory: agents and the key that they trust outlive the process."""

from __future__ import annotations

from pathlib import Path

from ray_multicluster_scheduler.control_plane.store import Change, SqliteStore
from ray_multicluster_scheduler.scheduler.connection.link_memory import NoMemory, RememberedAgent
from ray_multicluster_scheduler.scheduler.scheduler_core.stored_memory import StoredMemory

AGENT = RememberedAgent("a", "rmcs-agent-cp-a-1-1", "secret", "127.0.0.1", 4242)


async def test_the_next_process_knows_the_agents_and_the_key(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    memory = StoredMemory(store)
    assert (memory.agents(), memory.identity()) == ([], None)
    other = RememberedAgent("b", "rmcs-agent-cp-b-1-2", "other", "10.0.0.7", 4243, tls=True)
    await memory.remember(AGENT)
    await memory.remember(other)
    await memory.keep_identity(b"pem")
    await memory.keep_identity(b"pem")
    memory.forget(AGENT.agent)
    memory.forget("never was")
    store.close()
    store = SqliteStore(tmp_path)
    memory = StoredMemory(store)
    assert (memory.agents(), memory.identity()) == ([other], b"pem")
    store.close()


async def test_a_later_version_may_write_more_of_an_agent(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    text = b'{"cluster": "a", "agent": "x", "secret": "s", "host": "h", "port": 1, "tls": false, "mood": "good"}'
    store.write(Change(settings={"agent:x": text})).result()
    assert StoredMemory(store).agents() == [RememberedAgent("a", "x", "s", "h", 1)]
    store.close()


async def test_who_remembers_nothing() -> None:
    memory = NoMemory()
    await memory.remember(AGENT)
    memory.forget(AGENT.agent)
    await memory.keep_identity(b"pem")
