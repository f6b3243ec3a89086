"""The Python API: three functions, imported when asked for, that do what the commands do."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import ptq4vit_onnx
from ptq4vit_onnx import api, pipeline
from ptq4vit_onnx.cli.main import main
from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.report import terminal
from ptq4vit_onnx.request import ExportRequest


def test_importing_the_package_imports_nothing_heavy(run_python: Callable[..., Any]) -> None:
    run_python(
        "import sys, ptq4vit_onnx\n"
        "assert not {'torch', 'timm', 'onnx', 'onnxruntime', 'numpy'} & set(sys.modules)\n"
        "from ptq4vit_onnx import evaluate, check_parity, export\n"
        "assert not {'torch', 'timm'} & set(sys.modules)"
    )


def test_export_is_the_function_whatever_was_imported_before(run_python: Callable[..., Any]) -> None:
    run_python(
        "import ptq4vit_onnx.pipeline, ptq4vit_onnx.api, ptq4vit_onnx.cli.main\n"
        "from ptq4vit_onnx import export\n"
        "assert callable(export) and export is ptq4vit_onnx.api.export"
    )


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'quantise'"):
        _ = ptq4vit_onnx.quantise


@pytest.mark.parametrize("name", ["export", "evaluate", "check_parity"])
def test_the_functions_are_typed_and_described(name: str) -> None:
    function = getattr(ptq4vit_onnx, name)
    described = inspect.getdoc(function) or ""
    for parameter in inspect.signature(function).parameters.values():
        assert parameter.annotation is not inspect.Parameter.empty
    assert ">>>" in described
    assert name == "export" or "return" in get_type_hints(function)


def test_export_passes_on_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[ExportRequest] = []

    def spine(request: ExportRequest, _progress: Any) -> Any:
        asked.append(request)
        return "report"

    monkeypatch.setattr(pipeline, "export", spine)
    returned: Any = api.export("deit_t", 6, weight_bits=4, data="photos", output="out", method="paper", images=16)
    assert returned == "report"
    (request,) = asked
    assert (request.model, request.data, request.output) == ("deit_t", Path("photos"), Path("out"))
    options = request.options
    assert (options.weight_bits, options.activation_bits, options.images) == (4, 6, 16)
    assert options.weights == "per-tensor"


def test_the_command_line_and_python_ask_for_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[ExportRequest] = []

    monkeypatch.setattr(pipeline, "export", lambda request, _progress: asked.append(request))
    monkeypatch.setattr(terminal, "rows", lambda _report: [("", "")])
    cases: list[tuple[str, dict[str, Any]]] = [
        ("", {}),
        ("--bits 6 --weight-bits 4 --rounds 0", {"bits": 6, "weight_bits": 4, "rounds": 0}),
        ("--paper --seed 3 --batch 2", {"method": "paper", "seed": 3, "batch": 2}),
        ("--method base --metric mse", {"method": "base", "metric": "mse"}),
        ("--plan p.json --images 7 --force", {"plan": "p.json", "images": 7, "force": True}),
        ("--img-size 256x384 --force-data", {"img_size": (256, 384), "force_data": True}),
        ("--img-size 384", {"img_size": 384}),
    ]
    for typed, given in cases:
        assert main(["export", *typed.split()]) == 0
        api.export(**given)
        assert asked[-2] == asked[-1], typed
    assert len(set(asked)) == len(cases)


@pytest.mark.parametrize(
    ("given", "option"),
    [({"bits": 8}, "bits"), ({"method": "paper"}, "paper"), ({"method": "base"}, "method"), ({"rounds": 0}, "rounds"),
     ({"bias_correction": "none"}, "bias-correction"), ({"alpha": 0.5}, "alpha")],
    ids=str,
)  # fmt: skip
def test_an_option_that_a_plan_decides_is_refused_next_to_it(given: dict[str, Any], option: str) -> None:
    with pytest.raises(UserError, match=f"--plan decides the quantisation, --{option} has no effect next to it"):
        api.export(plan="plan.json", **given)


def test_a_wrong_method_or_width_is_the_callers_mistake() -> None:
    with pytest.raises(UserError, match="method is 'magic'; expected one of ptq4vit, paper, base"):
        api.export(method="magic")  # type: ignore[arg-type]
    with pytest.raises(UserError):
        api.export(bits=9)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"bits": "8"}, "weight_bits is '8'; expected a whole number from 2 to 8"),
        ({"activation_bits": 6.0}, "activation_bits is 6.0; expected a whole number from 2 to 8"),
        ({"weight_bits": True}, "weight_bits is True"),
        ({"batch": 0}, "batch is 0; expected a whole number from 1 to 4096"),
        ({"batch": "4"}, "batch is '4'"),
        ({"images": 0}, "images is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"alpha": "0"}, "alpha '0' and beta 1.2 are not numbers"),
        ({"beta": float("nan")}, "beta nan"),
        ({"rounding": "up"}, "rounding is 'up'; expected one of compensated, diffused, nearest"),
        ({"img_size": 0}, "img-size is 0; expected pixels as 384 or, height first, 256x384, at most 16384"),
        ({"img_size": "256x"}, "img-size is '256x'"),
        ({"img_size": (1, 2, 3)}, r"img-size is \(1, 2, 3\)"),
        ({"img_size": 2.5}, "img-size is 2.5"),
        ({"img_size": True}, "img-size is True"),
        ({"img_size": "9" * 50}, "img-size is '99"),
        ({"bias_correction": "yes"}, "bias_correction is 'yes'; expected one of auto, always, none"),
    ],
    ids=str,
)
def test_export_refuses_what_the_command_line_would(
    given: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "export", None)
    with pytest.raises(UserError, match=said):
        api.export(**given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"batch": 0}, "batch is 0; expected a whole number from 1 to 4096"),
        ({"batch": 2.0}, "batch is 2.0"),
        ({"threads": -1}, "threads is -1; expected a whole number from 0 to 1024"),
        ({"images": 0}, "images is 0; expected a whole number from 1"),
    ],
    ids=str,
)
def test_running_on_nothing_is_the_callers_mistake(given: dict[str, Any], said: str, exported: Path) -> None:
    model, reference = exported / "model.onnx", exported / "float.onnx"
    with pytest.raises(UserError, match=said):
        api.evaluate(model, **given)
    with pytest.raises(UserError, match=said):
        api.check_parity(model, reference, **given)


def test_no_models_cannot_be_evaluated() -> None:
    with pytest.raises(UserError, match="no models to evaluate; expected at least one"):
        api.evaluate([])


@pytest.mark.parametrize("name", ["min_agreement", "max_drop", "max_kl"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1, "0.5"], ids=str)
def test_a_limit_that_nothing_can_be_held_against_is_refused(name: str, value: Any) -> None:
    with pytest.raises(UserError, match=f"{name} is .*; expected a "):
        api.check_parity("absent.onnx", "absent.onnx", **{name: value})


def test_evaluate_takes_one_model_or_several(exported: Path, digit_files: Path) -> None:
    paths = [exported / "float.onnx", exported / "model.onnx"]
    alone = ptq4vit_onnx.evaluate(str(paths[1]), digit_files, threads=1)
    both = ptq4vit_onnx.evaluate(paths, str(digit_files), threads=1)
    assert alone.models[0].top1 == both.models[1].top1
    assert alone.models[0].agreement is None
    assert both.models[1].agreement is not None
    assert both.reference == both.models[0]


def test_check_parity_takes_the_plan_next_to_the_model(exported: Path, digit_files: Path) -> None:
    model, reference = str(exported / "model.onnx"), exported / "float.onnx"
    result = ptq4vit_onnx.check_parity(model, reference, digit_files, threads=1)
    assert result.passed
    assert [check.status for check in result.checks] == ["passed"] * 8
    strict = ptq4vit_onnx.check_parity(model, reference, digit_files, threads=1, max_kl=0.0)
    assert not strict.passed
    assert strict.first_divergent is None  # no site is wrong
