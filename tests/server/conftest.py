"""One server of a mock program for all tests that do not break or slow it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from server.live_server import Both, LiveServer
from server.scripted_program import ScriptedProgram

ENDPOINTS = ("completions", "chat/completions")


@pytest.fixture(scope="session")
def live() -> Iterator[LiveServer]:
    """Four slots of 64 positions; prompts of one token less."""
    with LiveServer(ScriptedProgram()) as server:
        yield server.ready()


@pytest.fixture(params=ENDPOINTS)
def endpoint(request: pytest.FixtureRequest, live: LiveServer) -> Both:
    return Both(live, request.param)
