"""Modules of the user's: which are taken, how their images are prepared, and what is refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.images.preprocessing import Preprocessing
from ptq4vit_onnx.model_loading.given_module import name_or_module, preprocessing_from
from ptq4vit_onnx.model_loading.timm_compat import import_timm
from ptq4vit_onnx.request import resolve_request

RULE = {"size": 32, "mean": (0.5,) * 3, "std": (0.25,) * 3}
MADE = Preprocessing((3, 32, 32), 1.0, "center", "bicubic", (0.5,) * 3, (0.25,) * 3)


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)


def test_a_name_stays_a_name_and_a_module_is_called_after_its_class() -> None:
    assert name_or_module("vit_b", None, None) == ("vit_b", None)
    assert name_or_module(Path("folder"), None, None) == ("folder", None)
    own = Own()
    name, given = name_or_module(own, RULE, None)
    assert given is not None and given.module is own
    assert (name, given.preprocessing) == ("Own", MADE)
    assert name_or_module(own, MADE, "mine")[0] == "mine"
    assert resolve_request("my net", given=given).folder == Path("my_net_w8a8")


def test_a_compiled_module_is_the_module_inside() -> None:
    own = Own()
    compiled: Any = torch.compile(own)
    given = name_or_module(compiled, RULE, None)[1]
    assert given is not None and given.module is own


@pytest.mark.parametrize(
    "given",
    [
        MADE,
        {**RULE, "size": (32, 32)},
        {**RULE, "size": [3, 32, 32]},
        {**RULE, "crop_mode": "center", "crop_pct": 1, "interpolation": "bicubic"},
        {"input_size": (3, 32, 32), "mean": [0.5] * 3, "std": [0.25] * 3},
    ],
)
def test_preprocessing_is_one_or_a_mapping(given: Any) -> None:
    assert preprocessing_from(given) == MADE


def test_the_data_config_of_timm_is_a_preprocessing() -> None:
    timm = import_timm()
    module = timm.create_model("vit_tiny_patch16_224", pretrained=False)
    rule = preprocessing_from(timm.data.resolve_model_data_config(module))
    assert (rule.size, rule.crop_pct, rule.interpolation) == ((3, 224, 224), 0.9, "bicubic")
    with pytest.raises(UserError, match=r"or timm\.data\.resolve_model_data_config\(module\)"):
        preprocessing_from(None, module)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, r"a module does not say how its images are prepared; give preprocessing=dict\(size=224"),
        (224, r"preprocessing is a int; expected preprocessing=dict\("),
        ({"size": 32}, "preprocessing lacks mean; expected size, mean and std"),
        ({**RULE, "means": 3}, "preprocessing has 'means'; expected size, mean and std, and perhaps crop_pct"),
        ({**RULE, "size": "large"}, "preprocessing is {'size': 'large'.*; expected preprocessing="),
        ({**RULE, "size": (1, 2, 3, 4)}, r"preprocessing is {'size': \(1, 2, 3, 4\).*; expected"),
        ({**RULE, "mean": 0.5}, "preprocessing is .*'mean': 0.5.*; expected"),
        ({**RULE, "std": (0, 1, 1)}, "std .* is not usable; expected numbers above 0"),
        ({**RULE, "interpolation": "best"}, "interpolation 'best' is not one of nearest"),
    ],
)
def test_a_preprocessing_that_is_missing_or_malformed_is_refused(given: Any, said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        preprocessing_from(given)
    assert "\n" not in str(caught.value)


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.eye(3).to_sparse())


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Own().double(), r"fc.weight of the module is float64, expected float32; give copy.deepcopy\(module\)"),
        (lambda: Own().half(), "is float16, expected float32"),
        (lambda: Own().bfloat16(), "is bfloat16, expected float32"),
        (lambda: Own().to("meta"), "fc.weight of the module is a meta tensor without values; load its weights first"),
        (lambda: torch.jit.script(nn.Linear(2, 2)), "TorchScript module.*; give the nn.Module it was made of"),
        (Sparse, "table of the module is sparse or quantised; give the float module"),
        (lambda: 3, "model is a int; expected a name or a torch.nn.Module"),
    ],
)
def test_a_module_that_is_not_float32_on_the_cpu_is_refused(make: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        name_or_module(make(), RULE, None)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model": "vit_b", "preprocessing": RULE, "name": None}, "preprocessing is for a module; vit_b has its own"),
        ({"model": "vit_b", "preprocessing": None, "name": "x"}, "name is for a module"),
        ({"model": Own(), "preprocessing": RULE, "name": ""}, "name is ''; expected a word"),
        ({"model": Own(), "preprocessing": RULE, "name": "vit_digits"}, "is a model of the package; give another"),
    ],
)
def test_what_contradicts_itself_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        name_or_module(**options)


@pytest.mark.parametrize(
    "option", [{"checkpoint": "x.pth"}, {"random_weights": True}, {"img_size": 64}, {"num_classes": 0}]
)
def test_options_that_would_build_another_model_are_refused_next_to_a_module(option: dict[str, Any]) -> None:
    given = name_or_module(Own(), RULE, None)[1]
    with pytest.raises(
        UserError, match=f"{next(iter(option))} has no effect on a module.*leave {next(iter(option))} out"
    ):
        resolve_request("Own", given=given, **option)
