"""Files that nobody vouches for, changed in thousands of ways: each is taken, or refused in one line.

A few of each kind run with all tests, always the same. `python -m pytest tests/fuzz --fuzz-examples 2000` tries as many
of each, and `--fuzz-seed 7` others than without it.
"""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.conftest import FloatExport
from tests.fuzz.oracle import judged
from tests.fuzz.targets.checkpoints import Checkpoints
from tests.fuzz.targets.codes import Codes
from tests.fuzz.targets.images import Arrays, Images, Labels
from tests.fuzz.targets.onnx_files import OnnxFiles
from tests.fuzz.targets.plans import Journals, Plans
from tests.fuzz.targets.target import Target
from tests.stored_codes import plan_with_codes

Fuzz = Callable[[Target], Counter[str]]


@pytest.fixture
def fuzz(request: pytest.FixtureRequest, tmp_path: Path) -> Fuzz:
    """A target -> how often its files were taken and refused; fails where anything else happened."""
    count, other = request.config.getoption("--fuzz-examples"), request.config.getoption("--fuzz-seed")

    def run(target: Target) -> Counter[str]:
        counts: Counter[str] = Counter()

        @settings(
            max_examples=count or target.examples, derandomize=other is None, database=None, deadline=None,
            suppress_health_check=list(HealthCheck), phases=(Phase.generate, Phase.shrink), print_blob=True,
        )  # fmt: skip
        @given(st.randoms(use_true_random=False))
        def attack(random: Random) -> None:
            judged(lambda: target.attack(random, tmp_path), counts)

        logging.disable(logging.WARNING)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                (attack if other is None else seed(other)(attack))()
        finally:
            logging.disable(logging.NOTSET)
        request.node.user_properties.append((type(target).__name__, dict(counts)))
        return counts

    return run


def test_plans(fuzz: Fuzz, float_export: Callable[..., FloatExport], exported: Path) -> None:
    from ptq4vit_onnx.images.embedded import embedded_digits

    made = float_export("vit_digits")
    images = embedded_digits(made.model.preprocessing, "test", 2)
    target = Plans(made.model, made.sites, exported / "float.onnx", exported / "plan.json", images)
    found = fuzz(target)
    assert found["taken"] and found["refused"]


def test_codes(fuzz: Fuzz, float_export: Callable[..., FloatExport], exported: Path) -> None:
    made = float_export("vit_digits")
    found = fuzz(Codes(made.model, made.sites, made.proto, plan_with_codes(exported)))
    assert found["taken"] and found["refused"]


def test_journals(fuzz: Fuzz, exported: Path) -> None:
    assert fuzz(Journals(exported / "plan.json"))["taken"]


def test_checkpoints(fuzz: Fuzz) -> None:
    from ptq4vit_onnx.model_loading.timm_models import build
    from ptq4vit_onnx.models.specs import find

    spec: Any = find("vit_digits")
    found = fuzz(Checkpoints(build(spec).eval(), spec.checkpoint))
    assert found["taken"] and found["refused"]


@pytest.mark.parametrize("target", [Images, Arrays, Labels])
def test_images(fuzz: Fuzz, target: type[Target]) -> None:
    found = fuzz(target())
    assert found["taken"] and found["refused"]


def test_onnx_files(fuzz: Fuzz, exported: Path) -> None:
    found = fuzz(OnnxFiles(exported))
    assert found["taken"] and found["refused"]
