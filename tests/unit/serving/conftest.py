from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ray_multicluster_scheduler.serving import SwarmPilotScheduler
from tests.support.serving_instances import OpenAIStub, StubInstance
from tests.support.serving_server import Server


@pytest.fixture
def instance() -> Iterator[Callable[..., StubInstance]]:
    """Starts stub instances, and stops them after the test."""
    started: list[StubInstance] = []

    def start(*arguments: Any, **options: Any) -> StubInstance:
        started.append(StubInstance(*arguments, **options))
        return started[-1]

    yield start
    for one in started:
        one.stop()


@pytest.fixture
def scheduler() -> Iterator[SwarmPilotScheduler]:
    with SwarmPilotScheduler(health_interval_s=0.2) as one:
        yield one


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server()
    yield one
    one.stop()


@pytest.fixture
def llm() -> Iterator[Callable[..., OpenAIStub]]:
    """Starts servers of OpenAI's API, and stops them after the test."""
    started: list[OpenAIStub] = []

    def start(**options: Any) -> OpenAIStub:
        started.append(OpenAIStub(**options))
        return started[-1]

    yield start
    for one in started:
        one.stop()
