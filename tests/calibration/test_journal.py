"""An interrupted calibration goes on where it stopped, and ends in the same plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from ptq4vit_onnx.calibration import calibrate
from ptq4vit_onnx.calibration.journal import Journal
from ptq4vit_onnx.images.choice import choose_images
from ptq4vit_onnx.model_loading.load import resolve
from ptq4vit_onnx.network.discovery import discover
from ptq4vit_onnx.plan.code_file import carried_codes
from ptq4vit_onnx.plan.options import Options
from ptq4vit_onnx.plan.quantizers import Affine, TwinSoftmax, Uniform
from ptq4vit_onnx.plan.scale_plan import ScalePlan, SitePlan
from ptq4vit_onnx.planning.make_plan import make_plan
from ptq4vit_onnx.request import ExportRequest

SITES = {
    "head": SitePlan("linear", "other", Affine(8, (0.5,), (3,)), Uniform(8, (0.25, 0.125))),
    "blocks.0.attn.pv": SitePlan("matmul", "softmax", TwinSoftmax(6, 3), Uniform(6, (0.5,), -3)),
}
IDENTITY = {"weights": "abc", "options": {"bits": 8}}


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """A journal with two finished sites."""
    journal = Journal(tmp_path / ".out.resume.jsonl", IDENTITY)
    journal.start({})
    for name, plan in SITES.items():
        journal.add(name, plan)
    return journal


def test_what_was_added_is_read_again(journal: Journal) -> None:
    assert Journal(journal.path, dict(IDENTITY)).read() == SITES


def test_there_may_be_no_journal(tmp_path: Path) -> None:
    assert Journal(tmp_path / "none", IDENTITY).read() == {}


@pytest.mark.parametrize("identity", [{**IDENTITY, "weights": "other"}, {**IDENTITY, "options": {"bits": 6}}, {}])
def test_another_runs_journal_is_ignored(identity: dict[str, Any], journal: Journal) -> None:
    assert Journal(journal.path, identity).read() == {}


def test_a_torn_last_line_is_dropped_wherever_it_tore(journal: Journal) -> None:
    text = journal.path.read_text()
    second = text.rindex("\n", 0, -1) + 1
    for end in range(second, len(text) - 1, 7):
        journal.path.write_text(text[:end])
        assert list(journal.read()) == ["head"]


@pytest.mark.parametrize("line", ["3", "[]", '["a"]', '["a", 3]', '["a", {}]', "{}", '[["a"], {}]', "\x00"])
def test_a_line_that_holds_something_else_ends_the_reading(line: str, journal: Journal) -> None:
    whole = journal.path.read_text()
    first = whole.rindex("\n", 0, -1) + 1
    journal.path.write_text(whole + line + "\n")
    assert journal.read() == SITES
    journal.path.write_text(whole[:first] + line + "\n" + whole[first:])
    assert list(journal.read()) == ["head"]


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe\n", b"\x80"])
def test_a_damaged_journal_is_ignored(content: bytes, journal: Journal) -> None:
    journal.path.write_bytes(content)
    assert journal.read() == {}


def test_starting_again_keeps_what_is_known_and_forgets_the_torn_line(journal: Journal) -> None:
    with journal.path.open("a") as file:
        file.write('["torn", {"kind"')
    journal.start(journal.read())
    journal.add("last", SITES["head"])
    assert list(journal.read()) == [*SITES, "last"]


@pytest.mark.parametrize(
    ("weight_bits", "bar", "done"), [(8, "calibrating", 4), (4, "calibrating", 4), (4, "rounding", 27)]
)
def test_an_interrupted_calibration_searches_only_what_is_left_and_finds_the_same(
    weight_bits: int, bar: str, done: int, load_model: Callable[[str], Any], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """At four bits with the same codes, wherever it was interrupted: weights are rounded again."""
    import torch

    model = load_model("swin_digits")
    options = Options(images=2, candidates=5, rounds=1, weights="per-tensor", metric="mse", weight_bits=weight_bits)
    images = choose_images(resolve("swin_digits"), None, model.preprocessing, 2, 0, rounding=6)
    order = [site.name for site in discover(model.module, torch.from_numpy(images.calibration.images[:1]))]
    searched: list[str] = []
    plan_site = calibrate.plan_site

    def counting(recording: Any, *rest: Any) -> SitePlan:
        searched.append(recording.site.name)
        return plan_site(recording, *rest)

    def stop_at_the_fifth(items: Iterable[Any], title: str) -> Iterable[Any]:
        for number, item in enumerate(items):
            if title == bar and number == 4:
                raise KeyboardInterrupt
            yield item

    def run(output: str, progress: Any = lambda items, _title: items) -> ScalePlan:
        request = ExportRequest("swin_digits", options, tmp_path / output)
        return make_plan(request, model, images, order, {}, progress).plan

    monkeypatch.setattr(calibrate, "plan_site", counting)
    with pytest.raises(KeyboardInterrupt):
        run("out", stop_at_the_fifth)
    first, searched[:] = list(searched), []
    assert len(first) == done
    assert [file.name for file in tmp_path.iterdir()] == [".out.resume.jsonl"]
    resumed = run("out")
    assert len(searched) == len(order) - done
    assert not set(searched) & set(first)
    searched.clear()
    assert run("out") == resumed
    assert searched == [], "what fails after the calibration does not cost it: the journal stays until the end"
    assert resumed == run("whole")
    assert list(resumed.sites) == order
    assert bool(carried_codes(resumed)) is (weight_bits == 4)
