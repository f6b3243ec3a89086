"""All forms of files, made once for the tests of operators and those of engines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.engines.forms import Array, Form, forms
from tests.engines.signatures import Seen, look_at


@pytest.fixture(scope="session")
def all_forms(float_export: Callable[..., Any], digits: Array) -> list[Form]:
    return list(forms(float_export, digits))


@pytest.fixture(scope="session")
def seen(all_forms: list[Form]) -> Seen:
    return look_at(all_forms)
