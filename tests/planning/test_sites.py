"""Plans of all sites: one pass where nothing is compensated, two where weights are rounded together, and on how many
images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from ptq4vit_onnx.calibration.calibrate import calibrate
from ptq4vit_onnx.images.embedded import embedded_digits
from ptq4vit_onnx.images.preprocessing import Preprocessing
from ptq4vit_onnx.network.recording import Recording
from ptq4vit_onnx.network.tape import record
from ptq4vit_onnx.plan.code_file import code_bytes
from ptq4vit_onnx.plan.options import Options
from ptq4vit_onnx.plan.quantizers import Compensated
from ptq4vit_onnx.plan.scale_plan import ScalePlan, SitePlan
from ptq4vit_onnx.planning import sites
from ptq4vit_onnx.planning.sites import MOST_ROUNDING_IMAGES, plan_sites, rounding_images

QUICK: dict[str, Any] = {"images": 6, "candidates": 8}
W4 = Options(weight_bits=4, **QUICK)


@pytest.fixture(scope="module")
def model(load_model: Callable[[str], Any]) -> Any:
    return load_model("vit_digits")


@pytest.fixture(scope="module")
def images(model: Any) -> Any:
    """Sixteen, of which six are searched on: one batch and a half."""
    return embedded_digits(model.preprocessing, "calibration", 16).images


class Told:
    """What was told of each site, in order."""

    def __init__(self) -> None:
        self.plans: list[tuple[str, SitePlan]] = []
        self.rows: dict[str, int] = {}

    def __call__(self, recording: Recording, plan: SitePlan) -> None:
        self.plans.append((recording.site.name, plan))
        self.rows[recording.site.name] = len(recording.lhs)


def searched(model: Any, images: Any, options: Options) -> dict[str, SitePlan]:
    tape = record(model.module, images, options.seed, options.labels, kind=model.kind)
    return calibrate(tape, options, pixels=model.pixel_grid)


@pytest.fixture(scope="module")
def before(model: Any, images: Any) -> dict[str, SitePlan]:
    """What the search by itself finds."""
    return searched(model, images[:6], W4)


@pytest.fixture(scope="module")
def found(model: Any, images: Any) -> dict[str, SitePlan]:
    return plan_sites(model, images[:6], W4, rounded_on=images)


@pytest.mark.parametrize(
    "options", [Options(**QUICK), replace(W4, rounding="diffused"), Options.paper(weight_bits=4, **QUICK)]
)
def test_where_nothing_is_compensated_it_is_one_pass_of_the_search(
    options: Options, model: Any, images: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sites, "observe", lambda *_: pytest.fail("there is nothing to hear"))
    on_search, on_site = Told(), Told()
    found = plan_sites(model, images[:6], options, rounded_on=images, on_search=on_search, on_site=on_site)
    assert found == searched(model, images[:6], options)
    assert on_search.plans == on_site.plans == list(found.items())


def test_below_eight_bits_the_weights_of_the_same_search_are_rounded_together(
    found: dict[str, SitePlan], before: dict[str, SitePlan]
) -> None:
    assert list(found) == list(before)
    changed = [name for name in found if found[name] != before[name]]
    weights = [name for name, plan in before.items() if plan.kind != "matmul"]
    assert set(changed) <= set(weights) and len(changed) >= len(weights) - 1, "the patches may be better diffused"
    for name in changed:
        assert isinstance(found[name].rhs, Compensated)
        kept = replace(found[name], rhs=before[name].rhs, losses=before[name].losses)
        assert kept == before[name], "all else is as it was searched"


def test_a_site_is_told_of_as_searched_and_as_finished(
    found: dict[str, SitePlan], before: dict[str, SitePlan], model: Any, images: Any
) -> None:
    on_search, on_site = Told(), Told()
    again = plan_sites(model, images[:6], W4, rounded_on=images, on_search=on_search, on_site=on_site)
    assert again == found == dict(on_site.plans)
    assert dict(on_search.plans) == before
    assert [name for name, _ in on_search.plans] == [name for name, _ in on_site.plans]
    tokens = on_search.rows["blocks.0.mlp.fc1"] // 6
    assert on_site.rows["blocks.0.mlp.fc1"] == 8 * tokens, "recorded of the searched images, in whole batches of four"


def test_more_images_to_round_on_change_the_codes_and_not_what_was_searched(
    found: dict[str, SitePlan], before: dict[str, SitePlan], model: Any, images: Any
) -> None:
    fewer = plan_sites(model, images[:6], W4, known=before)
    the_same = plan_sites(model, images[:6], W4, known=before, rounded_on=images[:6])
    assert fewer == the_same, "those that were searched on, if no others are given"
    name = "blocks.3.mlp.fc1"
    assert fewer[name].rhs != found[name].rhs and fewer[name].lhs == found[name].lhs


def test_sites_that_are_known_are_not_searched_and_rounded_as_before(
    found: dict[str, SitePlan], before: dict[str, SitePlan], model: Any, images: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ptq4vit_onnx.calibration.calibrate.plan_site", lambda *_: pytest.fail("searched again"))
    assert plan_sites(model, images[:6], W4, rounded_on=images, known=before) == found


def test_codes_are_the_same_bytes_on_one_and_two_threads(found: dict[str, SitePlan], model: Any, images: Any) -> None:
    before, written = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            plan = plan_sites(model, images[:6], W4, rounded_on=images)
            assert plan == found
            written.append(code_bytes(ScalePlan("vit_digits", "", "", {}, {}, plan)))
    finally:
        torch.set_num_threads(before)
    assert written[0] == written[1]


class Sized:
    """A model of so many weights, for images of so many pixels a side."""

    def __init__(self, weights: int, side: int) -> None:
        self.module = nn.Module()
        self.module.weight = nn.Parameter(torch.empty(weights, device="meta"))
        self.preprocessing = Preprocessing((3, side, side), 1.0, "center", "bilinear", (0.0,) * 3, (1.0,) * 3)


@pytest.mark.parametrize(
    ("weights", "side", "options", "expected"),
    [
        (5_700_000, 224, Options(weight_bits=4), MOST_ROUNDING_IMAGES),  # DeiT-T
        (22_000_000, 224, Options(weight_bits=4), MOST_ROUNDING_IMAGES),  # DeiT-S
        (45_000_000, 224, Options(weight_bits=4), 64),
        (86_600_000, 224, Options(weight_bits=4), 33),  # DeiT-B
        (300_000_000, 224, Options(weight_bits=4), 32),  # never fewer than the search sees
        (22_500_000, 448, Options(weight_bits=4), 32),
        (22_500_000, 448, Options(weight_bits=4, images=50), 50),
        (300_000_000, 224, Options(weight_bits=4, rounding_images=200), 200),
        (5_700_000, 224, Options(weight_bits=7), MOST_ROUNDING_IMAGES),
        (5_700_000, 224, Options(weight_bits=8, rounding_images=200), 0),
        (5_700_000, 224, Options(weight_bits=4, rounding="diffused"), 0),
        (5_700_000, 224, Options.paper(weight_bits=4), 0),
        (5_700_000, 224, Options.base(weight_bits=4), 0),
    ],
)
def test_small_models_are_rounded_on_more_images_and_what_is_given_is_taken(
    weights: int, side: int, options: Options, expected: int
) -> None:
    model: Any = Sized(weights, side)
    assert rounding_images(model, options) == expected
