"""Operations in pieces: the right numbers, the same bits on any number of threads, torch as it was afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ptq4vit_onnx.calibration.calibrate import calibrate
from ptq4vit_onnx.calibration.measure_evidence import collect
from ptq4vit_onnx.images.embedded import embedded_digits
from ptq4vit_onnx.network.recording import Recording
from ptq4vit_onnx.network.tape import record
from ptq4vit_onnx.plan.options import Options
from ptq4vit_onnx.plan.scale_plan import SitePlan
from ptq4vit_onnx.threads import fixed_order as rules
from ptq4vit_onnx.threads.fixed_order import fixed_order

THREADS = (1, 2, 4)


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def with_gradients(function: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    leaves = [x.clone().requires_grad_() for x in inputs]
    out = function(*leaves)
    torch.autograd.backward([out.square().sum()])
    return [out.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


OPERATIONS: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "a linear": (F.linear, (drawn(4, 99, 48), drawn(64, 48), drawn(64))),
    "a linear without bias": (F.linear, (drawn(396, 48), drawn(64, 48))),
    "a product of two activations": (torch.matmul, (drawn(2, 3, 99, 16), drawn(2, 3, 16, 99))),
    "a convolution": (lambda x: F.conv2d(x, drawn(8, 3, 4, 4), drawn(8), stride=4), (drawn(3, 3, 32, 32),)),
    "a bias for each row": (torch.addmm, (drawn(99, 64), drawn(99, 48), drawn(48, 64))),
    "softmax and a sum": (lambda x: x.softmax(-1) * x.sum(), (drawn(8, 197, 197),)),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_values_and_gradients_are_torchs_and_the_same_bits_on_any_number_of_threads(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Next to torch's own up to the order of a sum: its length times float32's rounding, relative to the largest."""
    monkeypatch.setattr(rules, "SMALL", 1 << 14)
    function, inputs = OPERATIONS[name]
    found = []
    for threads in THREADS:
        torch.set_num_threads(threads)
        with fixed_order():
            assert torch.get_num_threads() == 1
            found.append(with_gradients(function, *inputs))
        assert torch.get_num_threads() == threads
    for other in found[1:]:
        assert all(map(torch.equal, other, found[0]))
    for got, expected in zip(found[0], with_gradients(function, *inputs), strict=True):
        assert (got - expected).abs().max() <= 400 * 2**-24 * expected.abs().max()


def test_a_large_product_is_cut_by_its_shape_alone_and_a_small_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces: list[list[int]] = []

    class Noting(rules._InPieces):  # type: ignore[no-untyped-call]
        def __init__(self, pool: Any) -> None:
            super().__init__(pool)
            mapping = self.map

            def noted(one: Any, lhs: Any, *rest: Any) -> Any:
                pieces.append([len(x) for x in lhs])
                return mapping(one, lhs, *rest)

            self.map = noted

    monkeypatch.setattr(rules, "_InPieces", Noting)
    for threads in THREADS:
        torch.set_num_threads(threads)
        with fixed_order():
            _ = drawn(788, 192) @ drawn(192, 768), drawn(788, 192) @ drawn(192, 16), drawn(40, 999) @ drawn(999, 999)
    assert pieces == [[132, 132, 131, 131, 131, 131]] * len(THREADS)


@pytest.mark.parametrize("name", ["vit_digits", "swin_digits"])
def test_a_plan_and_its_evidence_are_the_same_on_any_number_of_threads(
    name: str, load_model: Callable[[str], Any]
) -> None:
    model, options = load_model(name), Options(images=8, candidates=30)
    images = embedded_digits(model.preprocessing, "calibration", 8)

    def found(threads: int) -> tuple[dict[str, SitePlan], list[Any]]:
        torch.set_num_threads(threads)
        evidence: list[Any] = []

        def keep(recording: Recording, plan: SitePlan) -> None:
            evidence.append(collect(recording, plan, options))

        tape = record(model.module, images.images, 0, options.labels, kind=model.kind)
        return calibrate(tape, options, None, keep, model.pixel_grid), evidence

    assert found(1) == found(2) == found(4)
