"""Every test here ends with the engine threads gone."""

import gc

import pytest
from engine_harness import engine_threads


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    if engine_threads():
        gc.collect()  # an engine in a reference cycle closes when it is collected
    assert engine_threads() == []
