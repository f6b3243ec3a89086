"""Weights from a file: checkpoints good and bad."""

from __future__ import annotations

import pickle
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.model_loading.checkpoints import load_state, read_state, resampled_tables
from ptq4vit_onnx.model_loading.load import load, resolve
from ptq4vit_onnx.model_loading.timm_compat import import_timm
from ptq4vit_onnx.models.specs import DIGITS_FOLDER, ModelSpec

WEIGHTS = DIGITS_FOLDER / "vit_digits.safetensors"
TINY = ModelSpec("tiny", "vit_tiny_patch16_224", 224, "a small one")
TRAINED = "the weights were trained at"
State = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def state() -> State:
    """vit_digits' own weights."""
    return read_state(WEIGHTS)


@pytest.fixture(scope="module")
def tiny_state() -> State:
    """Weights of an ImageNet-sized ViT-T."""
    return dict(load(TINY, random_weights=True).module.state_dict())


def refusal(path: Path, name: str = "vit_digits") -> str:
    with pytest.raises(UserError) as caught:
        load(resolve(name), path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return str(caught.value)


def said_resampled(caplog: pytest.LogCaptureFixture) -> str:
    """The one warning that was logged."""
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    return record.getMessage()


def saved(path: Path, data: Any) -> Path:
    torch.save(data, path)
    return path


def test_a_missing_checkpoint_says_what_is_expected(tmp_path: Path) -> None:
    assert "give a .safetensors, .pth, .pt or .bin file" in refusal(tmp_path / "absent.pth")


def test_a_folder_is_no_checkpoint(tmp_path: Path) -> None:
    assert "no checkpoint at" in refusal(tmp_path)


@pytest.mark.parametrize("kept", [0.0, 0.0001, 0.5, 0.999], ids=lambda part: f"{part:%}")
@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_a_truncated_checkpoint_is_refused(suffix: str, kept: float, state: State, tmp_path: Path) -> None:
    whole = WEIGHTS if suffix == ".safetensors" else saved(tmp_path / "whole.pth", state)
    data = whole.read_bytes()
    cut = tmp_path / f"cut{suffix}"
    cut.write_bytes(data[: int(kept * len(data))])
    message = refusal(cut)
    assert "is it complete?" in message or "damaged" in message


def test_a_truncated_checkpoint_in_the_old_format_is_refused(state: State, tmp_path: Path) -> None:
    path = tmp_path / "old.pth"
    torch.save(state, path, _use_new_zipfile_serialization=False)
    assert set(read_state(path)) == set(state)
    for part in (3, 100, path.stat().st_size - 5):
        cut = tmp_path / "cut.pth"
        cut.write_bytes(path.read_bytes()[:part])
        refusal(cut)


@pytest.mark.parametrize("content", [b"just text\n", b"\x80\x02}q\x00.", b"\x00" * 64, b"PK\x03\x04rubbish"])
@pytest.mark.parametrize("suffix", [".safetensors", ".bin"])
def test_a_file_of_something_else_is_refused(content: bytes, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"odd{suffix}"
    path.write_bytes(content)
    refusal(path)


class _Trap:
    """Pickled, it is code: whoever loads it creates a file."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return Path.touch, (self.target,)


@pytest.mark.parametrize("form", ["zip", "old", "raw"])
def test_code_in_a_pickle_is_refused_and_never_run(form: str, tmp_path: Path) -> None:
    path, target = tmp_path / "trap.pth", tmp_path / "sprung"
    if form == "raw":
        path.write_bytes(pickle.dumps({"state_dict": _Trap(target)}))
    else:
        torch.save({"state_dict": _Trap(target)}, path, _use_new_zipfile_serialization=form == "zip")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a warning would be a second line
        message = refusal(path)
    assert not target.exists()
    assert "would run code" in message
    assert ".safetensors" in message
    pickle.loads(pickle.dumps(_Trap(target)))
    assert target.exists(), "the trap itself works, so its silence above means something"


@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: state,
        lambda state: {"state_dict": state, "epoch": 3, "optimizer": {"lr": 0.1}},
        lambda state: {"model": state},
        lambda state: {"model_ema": state, "model": {"other": torch.zeros(1)}},
        lambda state: {"model": {"state_dict": state}},
        lambda state: {f"module.{key}": value for key, value in state.items()},
        lambda state: {"state_dict": {f"module._orig_mod.{key}": value for key, value in state.items()}},
        lambda state: {**state, "step": 3},
    ],
    ids=["plain", "state_dict", "model", "model_ema", "nested twice", "module.", "compiled", "a counter"],
)
def test_weights_are_found_under_the_usual_wrappers(
    wrap: Callable[[State], Any], state: State, tmp_path: Path, load_model: Callable[[str], Any]
) -> None:
    loaded = load(resolve("vit_digits"), saved(tmp_path / "wrapped.pth", wrap(state)))
    assert loaded.fingerprint == load_model("vit_digits").fingerprint
    assert (loaded.origin, loaded.is_random, loaded.classes) == ("checkpoint", False, 10)


@pytest.mark.parametrize("data", [[1, 2], {"epoch": 3}, {}, {3: torch.zeros(1)}, torch.zeros(3)], ids=repr)
def test_a_file_without_a_state_dict_is_refused(data: Any, tmp_path: Path) -> None:
    assert "holds no state dict" in refusal(saved(tmp_path / "odd.pth", data))


def test_another_architecture_is_refused_by_its_keys(tmp_path: Path) -> None:
    message = refusal(DIGITS_FOLDER / "swin_digits.safetensors")
    assert "missing: cls_token" in message
    assert "unexpected: head.fc.bias, head.fc.weight, layers.0.blocks.0" in message
    assert "more" in message
    assert "ptq4vit-onnx models" in message


def test_another_width_is_refused_by_its_shapes(state: State, tmp_path: Path) -> None:
    changed = {**state, "blocks.0.mlp.fc1.weight": torch.zeros(128, 64)}
    message = refusal(saved(tmp_path / "wide.pth", changed))
    assert "of another shape: blocks.0.mlp.fc1.weight [128, 64] instead of [256, 64]" in message


def test_one_missing_and_one_unexpected_key_are_both_named(state: State, tmp_path: Path) -> None:
    changed = {key: value for key, value in state.items() if key != "norm.bias"}
    message = refusal(saved(tmp_path / "odd.pth", {**changed, "extra.weight": torch.zeros(1)}))
    assert "missing: norm.bias; unexpected: extra.weight;" in message


def test_a_checkpoint_that_timm_cannot_convert_is_refused(tiny_state: State, tmp_path: Path) -> None:
    changed = {**tiny_state, "pos_embed": torch.zeros(7)}
    with pytest.raises(UserError, match="does not fit tiny"):
        load(TINY, saved(tmp_path / "odd.pth", changed))


def test_weights_that_are_not_numbers_are_refused(state: State, tmp_path: Path) -> None:
    changed = {**state, "norm.bias": torch.full((64,), float("nan"))}
    assert "NaN or infinite weights: in: norm.bias" in refusal(saved(tmp_path / "nan.pth", changed))


def test_half_precision_weights_load_as_float32(state: State, tmp_path: Path) -> None:
    path = tmp_path / "half.safetensors"
    save_file({key: value.half() for key, value in state.items()}, path)
    module = load(resolve("vit_digits"), path).module
    assert {value.dtype for value in module.state_dict().values()} == {torch.float32}


def test_position_embeddings_of_another_image_size_are_resampled_as_timm_does(
    tiny_state: State, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    timm = import_timm()
    larger = timm.create_model("vit_tiny_patch16_384", pretrained=False)
    torch.nn.init.normal_(larger.pos_embed)
    path = saved(tmp_path / "larger.pth", larger.state_dict())
    loaded = load(TINY, path).module.state_dict()
    assert larger.pos_embed.shape[1] == 577
    assert loaded["pos_embed"].shape == tiny_state["pos_embed"].shape
    assert (
        said_resampled(caplog)
        == "position table resampled from 24 x 24 to 14 x 14; --img-size 384 is the size that " + TRAINED
    )
    expected = timm.layers.resample_abs_pos_embed(larger.pos_embed.detach(), [14, 14])
    assert torch.equal(loaded["pos_embed"], expected)
    assert torch.equal(loaded["blocks.3.attn.qkv.weight"], larger.state_dict()["blocks.3.attn.qkv.weight"])


def test_a_checkpoint_of_the_size_asked_for_is_loaded_as_it_is(
    tiny_state: State, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    larger = import_timm().create_model("vit_tiny_patch16_384", pretrained=False).state_dict()
    loaded = load(TINY, saved(tmp_path / "larger.pth", larger), img_size=(384, 384))
    assert torch.equal(loaded.module.state_dict()["pos_embed"], larger["pos_embed"])
    assert (loaded.preprocessing.size, loaded.resampled) == ((3, 384, 384), "")
    same = load(TINY, saved(tmp_path / "same.pth", tiny_state))
    assert (same.preprocessing.size, same.resampled) == ((3, 224, 224), "")
    assert not caplog.records


def test_a_checkpoint_smaller_than_the_size_asked_for_is_resampled_and_said_to_be(
    tiny_state: State, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loaded = load(TINY, saved(tmp_path / "tiny.pth", tiny_state), img_size=(160, 256))
    assert loaded.module.state_dict()["pos_embed"].shape == (1, 1 + 10 * 16, 192)
    assert (
        loaded.resampled
        == "position table resampled from 14 x 14 to 10 x 16; --img-size 224 is the size that " + TRAINED
    )
    assert said_resampled(caplog) == loaded.resampled


def test_relative_position_tables_of_other_windows_are_said_to_be_resampled(tmp_path: Path) -> None:
    timm = import_timm()
    small = {"embed_dim": 12, "depths": (1, 1), "num_heads": (1, 1), "num_classes": 10}
    wide = timm.models.swin_transformer.SwinTransformer(img_size=96, window_size=12, **small)
    narrow = timm.models.swin_transformer.SwinTransformer(img_size=56, window_size=7, **small)
    before = wide.state_dict()
    load_state(narrow, before, tmp_path / "wide.pth", "swin")
    assert resampled_tables(narrow, before) == (
        "relative position tables resampled from windows of 12 x 12 to 7 x 7; if timm has the architecture with "
        "windows of 12 x 12, give that as --model"
    )
    assert resampled_tables(wide, before) == ""


def test_relative_position_tables_of_the_whole_image_name_its_size(tmp_path: Path) -> None:
    timm = import_timm()
    options = {"embed_dim": 12, "depth": 1, "num_heads": 1, "num_classes": 10, "use_rel_pos_bias": True}
    large, small = (timm.models.beit.Beit(img_size=size, use_abs_pos_emb=False, **options) for size in (64, 48))
    before = large.state_dict()
    load_state(small, before, tmp_path / "large.pth", "beit")
    assert resampled_tables(small, before) == (
        "relative position tables resampled from windows of 4 x 4 to 3 x 3; --img-size 64 is the size that " + TRAINED
    )


def test_a_resampled_table_of_an_unknown_kind_is_said_by_its_shapes() -> None:
    module = torch.nn.Module()
    module.pos_embed = torch.nn.Parameter(torch.zeros(1, 4, 4, 8))
    assert resampled_tables(module, {"pos_embed": torch.zeros(1, 6, 6, 8)}) == (
        "pos_embed resampled from [1, 6, 6, 8] to [1, 4, 4, 8], for images of another size"
    )


def test_a_checkpoint_brings_its_own_number_of_classes(tiny_state: State, tmp_path: Path) -> None:
    changed = {**tiny_state, "head.weight": torch.zeros(7, 192), "head.bias": torch.zeros(7)}
    assert load(TINY, saved(tmp_path / "seven.pth", changed)).classes == 7


def test_a_zip_without_tensors_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "odd.pth"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("hello.txt", "hello")
    assert "cannot read checkpoint" in refusal(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda weight: weight.to(torch.int8), "head.weight is int8"),
        (lambda weight: weight.bool(), "head.weight is bool"),
        (lambda weight: weight.to(torch.complex64), "head.weight is complex64"),
        (lambda weight: torch.quantize_per_tensor(weight, 0.1, 0, torch.qint8), "head.weight is qint8"),
        (lambda weight: weight.to_sparse(), "head.weight is sparse"),
        (lambda weight: weight.to("meta"), "head.weight is a shape without values"),
        (lambda weight: weight * 1e308, "NaN or infinite weights: in: head.weight"),
    ],
)
def test_weights_that_are_no_plain_numbers_are_refused_by_name(
    change: Callable[[torch.Tensor], torch.Tensor], said: str, state: State, tmp_path: Path
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = saved(tmp_path / "odd.pth", {**state, "head.weight": change(state["head.weight"])})
    assert said in refusal(path)


def test_whole_numbers_where_a_table_of_floats_is_expected_are_refused(state: State, tmp_path: Path) -> None:
    path = saved(tmp_path / "odd.pth", {**state, "pos_embed": state["pos_embed"].to(torch.int64)})
    assert "of another type: pos_embed int64" in refusal(path)


def test_one_weight_under_two_names_is_refused(state: State, tmp_path: Path) -> None:
    path = saved(tmp_path / "both.pth", {**state, "module.head.bias": state["head.bias"] + 1})
    assert "holds head.bias twice, as module.head.bias as well" in refusal(path)


def test_a_checkpoint_that_holds_itself_comes_to_an_end(state: State, tmp_path: Path) -> None:
    around: dict[str, Any] = {"state_dict": {**state}}
    around["state_dict"]["model"] = around
    path = saved(tmp_path / "itself.pth", around)
    assert "holds no state dict" in refusal(path) or set(read_state(path)) >= set(state)
