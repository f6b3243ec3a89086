"""Every pass: runs once, in its place, and says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.passes import PASSES, PassError


@pytest.fixture
def prepared(small: Any, random: Any) -> Any:
    """(model, plan) of a small attention."""
    x = random.standard_normal((2, 5, 12)).astype(np.float32)
    model = small.attention()
    return model, small.attention_plan(model, x)


@pytest.mark.parametrize("make", PASSES)
def test_a_pass_refuses_to_run_twice(make: Any, small: Any, prepared: Any) -> None:
    work = small.run_until(*prepared, make.__name__)
    with pytest.raises(PassError, match=f"{make.__name__} has already run"):
        make()(work)


@pytest.mark.parametrize("make", [make for make in PASSES if make.requires])
def test_a_pass_refuses_to_run_before_what_it_requires(make: Any, small: Any, prepared: Any) -> None:
    work = small.run_until(*prepared, "FindProducts")
    work.applied.clear()
    with pytest.raises(PassError, match=f"{make.__name__} needs {make.requires[0]}"):
        make()(work)


def test_the_order_on_the_page_satisfies_every_requirement() -> None:
    names = [make.__name__ for make in PASSES]
    for position, make in enumerate(PASSES):
        assert set(make.requires) <= set(names[:position]), make.__name__


def test_a_refusal_is_the_users_business_and_names_pass_site_and_node(small: Any, prepared: Any) -> None:
    error = PASSES[0]().refuse("fc", "fc/MatMul", "why")
    assert isinstance(error, UserError)
    assert str(error) == "FindProducts: site fc, node fc/MatMul: why"
