"""Every pass: runs once, in its place, and says so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.passes import PASSES, PassError
from ptq4vit_onnx.passes.pass_interface import Pass
from ptq4vit_onnx.plan.scale_plan import ScalePlan
from tests.passes.small_models import Small
from tests.passes.small_transformer import transformer_model, transformer_plan

Prepared = tuple[onnx.ModelProto, ScalePlan]


@pytest.fixture
def prepared(small: Small, random: np.random.Generator) -> Prepared:
    """(model, plan) of a small attention."""
    x = random.standard_normal((2, 5, 12)).astype(np.float32)
    model = small.attention()
    return model, small.attention_plan(model, x)


@pytest.mark.parametrize("make", PASSES)
def test_a_pass_refuses_to_run_twice(make: type[Pass], small: Small, prepared: Prepared) -> None:
    work = small.run_until(*prepared, make.__name__)
    with pytest.raises(PassError, match=f"{make.__name__} has already run"):
        make()(work)


@pytest.mark.parametrize("make", [make for make in PASSES if make.requires])
def test_a_pass_refuses_to_run_before_what_it_requires(make: type[Pass], small: Small, prepared: Prepared) -> None:
    work = small.run_until(*prepared, "FindProducts")
    work.applied.clear()
    with pytest.raises(PassError, match=f"{make.__name__} needs {make.requires[0]}"):
        make()(work)


def test_the_order_on_the_page_satisfies_every_requirement() -> None:
    names = [make.__name__ for make in PASSES]
    for position, make in enumerate(PASSES):
        assert set(make.requires) <= set(names[:position]), make.__name__


def requirements_of(make: type[Pass]) -> set[str]:
    """Names of the passes that must come before, with what they require themselves."""
    known = {item.__name__: item for item in PASSES}
    return {*make.requires, *(name for above in make.requires for name in requirements_of(known[above]))}


PAIRS = [(name, make.__name__) for make in PASSES for name in sorted(requirements_of(make))]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_two_passes_that_depend_on_each_other_cannot_change_places(first: str, second: str) -> None:
    known = {item.__name__: item for item in PASSES}
    swapped = {first: second, second: first}
    line = [known[swapped.get(make.__name__, make.__name__)] for make in PASSES]
    with pytest.raises(PassError, match=r"needs \w+(, \w+)* first; so far ran"):
        run(line, transformer_model(), transformer_plan())


def orders(line: tuple[type[Pass], ...] = ()) -> Iterator[tuple[type[Pass], ...]]:
    """All orders of the passes that the requirements allow, from `line` on."""
    names = {make.__name__ for make in line}
    ready = [make for make in PASSES if make.__name__ not in names and set(make.requires) <= names]
    if not ready:
        yield line
    for make in ready:
        yield from orders((*line, make))


def test_every_order_that_the_requirements_allow_gives_the_same_file() -> None:
    """So nothing is missing among them."""
    model, plan = transformer_model(), transformer_plan()
    expected, possible = run(PASSES, model, plan), list(orders())
    assert 1 < len(possible) < 100 and all(len(line) == len(PASSES) for line in possible)
    for line in possible:
        assert run(line, model, plan) == expected, [make.__name__ for make in line]


def run(line: Iterable[type[Pass]], model: onnx.ModelProto, plan: ScalePlan) -> set[bytes]:
    """The nodes and constants that the passes make in this order."""
    work = Small.start(model, plan)
    for make in line:
        make()(work)
    graph = gs.export_onnx(work.graph).graph
    return {item.SerializeToString(deterministic=True) for item in (*graph.node, *graph.initializer)}


def test_a_refusal_is_the_users_business_and_names_pass_site_and_node(small: Small, prepared: Prepared) -> None:
    error = PASSES[0]().refuse("fc", "fc/MatMul", "why")
    assert isinstance(error, UserError)
    assert str(error) == "FindProducts: site fc, node fc/MatMul: why"
