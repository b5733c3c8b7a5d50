"""Control planes with actors, for tests of a program's side; a module's own fixture of the same name comes first."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.client_api.actor_plane import ActorPlane


@pytest.fixture
def plane() -> Iterator[ActorPlane]:
    with ActorPlane() as running:
        yield running


@pytest.fixture
def slow() -> Iterator[ActorPlane]:
    """Actors are ready when the test says so."""
    with ActorPlane(slow=True) as running:
        yield running
