"""The table at the end of an export: what it says, and what it leaves out where there is nothing to say."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from ptq4vit_onnx.images.choice import MeasuredOn
from ptq4vit_onnx.images.loading import ImageSet
from ptq4vit_onnx.plan.channel_fold import Channels
from ptq4vit_onnx.report.data import CalibrationImages, Report
from ptq4vit_onnx.report.terminal import rows
from ptq4vit_onnx.runtime.bench import BenchResult, Timing

if TYPE_CHECKING:
    from tests.report.conftest import MadeUp

TITLES = ["model", "output", "bits", "calibrated on", "sites found", "float parity", "kernels", "site parity", "replay",
          "end to end", "against float", "top-1", "file", "size", "latency", "time"]  # fmt: skip


@pytest.fixture
def timed(made_up: MadeUp) -> Report:
    timings = (Timing("float", 1, 4, 2.2, 2.0, 2.4, 10, 1.0), Timing("model", 1, 4, 1.1, 1.0, 1.2, 10, 2.0))
    return replace(made_up.report, latency=BenchResult(timings, "AVX2"))


def test_every_row_is_a_sentence_of_what_was_measured(timed: Report) -> None:
    said = dict(rows(timed))
    assert list(said) == TITLES
    assert said["model"] == "vit_test"
    assert said["output"] == "logits [n, 10]: its num_classes is 10"
    assert said["bits"] == "weights 8, activations 6"
    assert said["float parity"] == "2.0e-07 of the logits' scale, ONNX Runtime against torch (limit 0.0001)"
    assert said["kernels"] == "5 of 5 products in integers, 42 weights moved to be exact on every CPU"
    assert said["site parity"] == "5 of 5 products equal integer arithmetic"
    assert said["replay"].startswith("every site within 4.0e-07 of its spread of the simulator")
    assert said["calibrated on"] == "32 images of photos"
    on = "on 500 images of embedded digits (test), not calibrated on"
    assert said["against float"] == f"98.4 % agreement, KL 5.7e-05, {on}"
    assert said["top-1"] == f"98.9 % (float 99.2 %), {on}"
    assert said["file"] == "out/model.onnx"
    assert said["size"] == "0.4 MB (float 1.3 MB)"
    assert said["latency"] == "1.1 ms (1.0 .. 1.2), float 2.2 ms (2.0 .. 2.4): 2.00x, one thread, batch 4, on AVX2"
    assert said["time"] == "load 3 s, calibrate 4 s"


def test_twins_and_channels_have_rows_where_they_were_chosen(timed: Report) -> None:
    forms, channels = {"TwinGelu": 0.1, "Affine": 0.3}, Channels("norm", (1.0,), (0.0,))
    sites = {name: replace(site, forms=forms, channels=channels) for name, site in timed.plan.sites.items()}
    found = rows(replace(timed, plan=replace(timed.plan, sites=sites)))
    assert [title for title, _ in found][5:7] == ["twins", "channels"]
    assert found[5][1].startswith("2 of 5 softmax and GELU inputs take two ranges")
    assert found[6][1].startswith("5 layers have their input channels centred and scaled")


@pytest.mark.parametrize(
    ("held_out", "said"),
    [
        (True, "64 images of photos, not calibrated on"),
        (False, "64 images of photos, also calibrated on, so the figure flatters"),
        (None, "64 images of photos, perhaps also calibrated on"),
    ],
)
def test_every_figure_says_on_what_it_was_measured(held_out: bool | None, said: str, timed: Report) -> None:
    found = dict(rows(replace(timed, proof=replace(timed.proof, measured_on=MeasuredOn(64, "photos", held_out)))))
    assert found["against float"].endswith(f"on {said}") and found["top-1"].endswith(f"on {said}")


def test_built_in_photos_come_with_when_own_images_are_better(timed: Report) -> None:
    images = CalibrationImages(32, (), "the built-in photos (coffee)", built_in=True)
    said = dict(rows(replace(timed, inputs=replace(timed.inputs, calibration_images=images))))["calibrated on"]
    assert said.startswith("32 images of the built-in photos (coffee); give your own by --data if")
    assert all(word in said for word in ("not photographs", "sizes", "channels"))


def test_a_plan_that_was_given_says_what_it_was_calibrated_on(timed: Report) -> None:
    images = ImageSet(np.zeros((2, 1, 1, 1), np.float32), None, ("a", "b"), "photos")
    plan = replace(timed.plan, images=images.fingerprint, options={"images_from": "7 images"})
    assert str(CalibrationImages.of(images, plan)) == "2 images of photos"
    assert str(CalibrationImages.of(images, replace(plan, images="0"))) == "7 images, as the given plan says"


def test_a_dry_run_says_so_and_has_no_accuracy(timed: Report) -> None:
    versus: Any = timed.against_float
    versus = replace(versus, top1_float=None, top1_quantised=None, drop=None)
    inputs = replace(timed.inputs, weights_from="random")
    said = dict(rows(replace(timed, inputs=inputs, proof=replace(timed.proof, against_float=versus))))
    assert said["model"] == "vit_test with RANDOM WEIGHTS"
    assert said["against float"].endswith("(random weights: says nothing about accuracy)")
    assert "top-1" not in said


def test_what_is_odd_about_the_inputs_is_said_right_below_the_model(timed: Report) -> None:
    images = replace(timed.inputs.calibration_images, warnings=("all are black; give others", "no blue; why"))
    inputs = replace(timed.inputs, calibration_images=images, resampled="position table resampled",
                     remarks=("no padding",), advice="four bits save nothing")  # fmt: skip
    assert rows(replace(timed, inputs=inputs))[:7] == [
        ("model", "vit_test"), ("WARNING", "four bits save nothing"),
        ("WARNING", "position table resampled"), ("WARNING", "no padding"),
        ("WARNING", "all are black; give others"), ("WARNING", "no blue; why"),
        ("output", "logits [n, 10]: its num_classes is 10"),
    ]  # fmt: skip
