"""The tools of the passes' tests, and their random numbers."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.small_models import Small


@pytest.fixture
def small() -> Small:
    return Small()


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(7)
