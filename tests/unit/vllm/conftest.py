"""Both halves over a store in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .fakes import FakeStore
from .mini import Mini

Make = Callable[..., Mini]


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
def make(store: FakeStore) -> Iterator[Make]:
    made: list[Mini] = []

    def build(*arguments: Any, **options: Any) -> Mini:
        made.append(Mini(store, *arguments, **options).start())
        return made[-1]

    yield build
    store.gate.set()
    for mini in made:
        mini.stop()
