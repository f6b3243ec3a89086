"""Searches on several workers: the same plans, and recordings that arrive as they were."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from ptq4vit_onnx.calibration.calibrate import calibrate
from ptq4vit_onnx.calibration.shared_search import Packed
from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.network.recording import Recording
from ptq4vit_onnx.network.tape import record
from ptq4vit_onnx.plan.options import Options
from ptq4vit_onnx.plan.scale_plan import SitePlan
from ptq4vit_onnx.plan.sites import Site
from ptq4vit_onnx.tasks.ambient import shared_out
from ptq4vit_onnx.tasks.one_by_one import OneByOne
from ptq4vit_onnx.tasks.start import LocalProcesses, opened

OPTIONS = Options(candidates=6, images=4)
SITE = Site("blocks.0.attn.qk", "matmul", "blocks.0.attn")


@pytest.fixture(scope="module")
def model(load_model: Any) -> Any:
    return load_model("vit_digits")


@pytest.fixture
def images(digits: Any) -> Any:
    return torch.from_numpy(digits[:4])


@pytest.fixture
def alone(model: Any, images: Any) -> dict[str, SitePlan]:
    return calibrate(record(model.module, images), OPTIONS, pixels=model.pixel_grid)


def test_helpers_find_the_plans_of_one_process(model: Any, images: Any, alone: dict[str, SitePlan]) -> None:
    with shared_out(OneByOne()):
        assert calibrate(record(model.module, images), OPTIONS, pixels=model.pixel_grid) == alone


def test_other_processes_find_them_to_the_last_bit(model: Any, images: Any, alone: dict[str, SitePlan]) -> None:
    """Of the last two blocks alone: what is sent is the same for all."""
    known = {name: plan for name, plan in alone.items() if not name.startswith(("blocks.4", "blocks.5", "head"))}
    kept: list[str] = []
    with opened(LocalProcesses(2)) as tasks, shared_out(tasks):
        found = calibrate(
            record(model.module, images), OPTIONS, known, lambda recording, _: kept.append(recording.site.name),
            model.pixel_grid,
        )  # fmt: skip
    assert found == alone and sorted(kept) == sorted(alone)
    assert len(tasks.history) == len(alone) - len(known) > 6


def test_a_site_that_cannot_be_searched_is_said_as_in_one_process() -> None:
    values = torch.full((4, 6), float("nan"))
    recording = Recording(Site("head", "linear", "head"), values, torch.ones(6, 3), torch.ones(4, 3))
    with shared_out(OneByOne()), pytest.raises(UserError, match="head: its input is not finite"):
        calibrate([recording], OPTIONS)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3), (0, 1, 3, 2), (3, 2, 1, 0)])
def test_a_recording_arrives_with_its_layout_in_memory(order: tuple[int, ...]) -> None:
    side = torch.arange(120.0).reshape(2, 3, 4, 5).permute(order)
    recording = Recording(SITE, side, side + 1, side * 2, 0.5)
    found = Packed.of(recording).recording()
    for name in ("lhs", "rhs", "grad"):
        sent, got = getattr(recording, name), getattr(found, name)
        assert torch.equal(sent, got) and sent.stride() == got.stride()
    assert (found.site, found.share) == (SITE, 0.5)


def test_no_more_recordings_are_held_than_workers_need() -> None:
    made, seen = [0], list[int]()

    def tape() -> Iterator[Recording]:
        for number in range(12):
            made[0] += 1
            yield Recording(Site(f"s{number}", "linear", ""), torch.randn(8, 6), torch.randn(6, 3), torch.randn(8, 3))

    class Counted(OneByOne):
        def finished(self) -> Iterator[Any]:
            for done in super().finished():
                seen.append(made[0] - len(seen))
                yield done

    with shared_out(Counted()):
        calibrate(tape(), replace(OPTIONS, candidates=2))
    assert len(seen) == 12 and max(seen) == 4, "three tasks, and the recording that waits for one of them to end"
