"""Kernels in Triton's interpreter take the fake device's tensors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.executor.device.fake import plain_launches


@pytest.fixture(autouse=True)
def _plain_launches() -> Iterator[None]:
    with plain_launches():
        yield
