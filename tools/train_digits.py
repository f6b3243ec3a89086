"""Train the embedded digit models ``vit_digits`` and ``swin_digits``.

Usage: ``python tools/train_digits.py [--output DIR] [--model NAME] [--data]``

Rules:

* ``--data`` writes ``digits.npz`` from scikit-learn's copy of the digits; nothing else needs scikit-learn.
* Training reads only the stored ``digits.npz`` and uses only its train split.  The weights of the last epoch
  are kept, so neither the calibration split nor the test split chooses anything.
* Seeds are fixed, algorithms deterministic and the work single-threaded: two runs with the same library
  versions on the same machine write identical bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as functional
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

from ptq4vit_onnx.model_loading.timm_compat import import_timm
from ptq4vit_onnx.models.digits_arch import (
    CLASSES,
    DIGITS_MAX_VALUE,
    DIGITS_MEAN,
    DIGITS_STD,
    IMAGE_SIZE,
    SPLIT_CALIBRATION,
    SPLIT_TEST,
    SPLIT_TRAIN,
    SWIN_DIGITS,
    VIT_DIGITS,
)

DIGITS_FOLDER = Path(__file__).resolve().parent / "digits"
DATA_NAME = "digits.npz"
MODEL_NAMES = ("vit_digits", "swin_digits")

SPLIT_SEED = 20240
TRAINING_SEED = 0
TEST_PER_CLASS = 50
CALIBRATION_PER_CLASS = 10


@dataclass(frozen=True)
class Recipe:
    """Training settings of one model."""

    epochs: int
    batch_size: int = 32
    learning_rate: float = 2e-3
    warmup_epochs: int = 5
    weight_decay: float = 0.05
    label_smoothing: float = 0.1
    gradient_norm: float = 1.0
    rotation_degrees: float = 10.0
    scale_range: float = 0.1
    shift_pixels: float = 2.0


RECIPES = {"vit_digits": Recipe(epochs=40), "swin_digits": Recipe(epochs=60)}


@dataclass(frozen=True)
class Digits:
    """The stored digits: values 0..16 [N, 8, 8], labels [N] and split numbers [N], all 8-bit."""

    images: NDArray[np.uint8]
    labels: NDArray[np.uint8]
    split: NDArray[np.uint8]


@dataclass(frozen=True)
class Outcome:
    """What training one model gave."""

    name: str
    parameters: int
    seconds: float
    calibration_top1: float
    test_top1: float
    file_bytes: int
    sha256: str


def stratified_split(labels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Give each image a split number; every class gives equally many test and calibration images.

    The generator is numpy's legacy one, whose stream numpy promises never to change.
    """
    generator = np.random.RandomState(SPLIT_SEED)
    split = np.full(labels.shape, SPLIT_TRAIN, dtype=np.uint8)
    for label in range(CLASSES):
        members = generator.permutation(np.flatnonzero(labels == label))
        split[members[:TEST_PER_CLASS]] = SPLIT_TEST
        split[members[TEST_PER_CLASS : TEST_PER_CLASS + CALIBRATION_PER_CLASS]] = SPLIT_CALIBRATION
    return split


def write_data(path: Path) -> None:
    """Write the digits of scikit-learn, unchanged, with the fixed split."""
    from sklearn.datasets import load_digits

    source = load_digits()
    labels = source.target.astype(np.uint8)
    images = source.images.astype(np.uint8)
    np.savez_compressed(path, images=images, labels=labels, split=stratified_split(labels))


def read_data(path: Path) -> Digits:
    """Read a stored ``digits.npz``."""
    with np.load(path, allow_pickle=False) as stored:
        return Digits(images=stored["images"], labels=stored["labels"], split=stored["split"])


def resized_pixels(digit: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Turn one 8x8 digit of values 0..16 into the resized 8-bit grey image."""
    grey = np.rint(digit.astype(np.float64) * 255.0 / DIGITS_MAX_VALUE).astype(np.uint8)
    resized = Image.fromarray(grey).resize((IMAGE_SIZE, IMAGE_SIZE), Image.Resampling.BICUBIC)
    return np.asarray(resized, dtype=np.uint8)


def unit_images(digits: NDArray[np.uint8]) -> Tensor:
    """Return digits as float images [N, 1, size, size] in 0..1, before normalisation."""
    pixels = np.stack([resized_pixels(digit) for digit in digits])
    return torch.from_numpy(pixels).unsqueeze(1).float() / 255.0


def normalise(images: Tensor) -> Tensor:
    """Apply the mean and standard deviation of the preprocessing contract."""
    return (images - DIGITS_MEAN) / DIGITS_STD


def subset(digits: Digits, split: int) -> tuple[Tensor, Tensor]:
    """Return the 0..1 images and the labels of one split."""
    chosen = digits.split == split
    return unit_images(digits.images[chosen]), torch.from_numpy(digits.labels[chosen]).long()


def augment(images: Tensor, recipe: Recipe, generator: torch.Generator) -> Tensor:
    """Rotate, scale and shift each 0..1 image at random; what comes in from outside is background (0)."""

    def uniform(limit: float) -> Tensor:
        return (torch.rand(len(images), generator=generator) * 2 - 1) * limit

    angle = uniform(math.radians(recipe.rotation_degrees))
    scale = 1 + uniform(recipe.scale_range)
    shift_limit = recipe.shift_pixels * 2 / IMAGE_SIZE
    cosine, sine = torch.cos(angle) * scale, torch.sin(angle) * scale
    matrix = torch.stack(
        [
            torch.stack([cosine, -sine, uniform(shift_limit)], dim=1),
            torch.stack([sine, cosine, uniform(shift_limit)], dim=1),
        ],
        dim=1,
    )
    grid = functional.affine_grid(matrix, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, padding_mode="zeros", align_corners=False)


def build_model(name: str) -> nn.Module:
    """Build one untrained model from its architecture constants."""
    models = import_timm().models
    model: nn.Module
    if name == "vit_digits":
        model = models.vision_transformer.VisionTransformer(**VIT_DIGITS)
    elif name == "swin_digits":
        model = models.swin_transformer.SwinTransformer(**SWIN_DIGITS)
    else:
        raise ValueError(f"unknown model {name!r}; known: {', '.join(MODEL_NAMES)}")
    return model


def initialise(model: nn.Module) -> None:
    """Start linear layers from Glorot's uniform values and zero biases.

    timm's own start (standard deviation 0.02) suits widths of several hundred; at these widths it is so small
    that training takes several times as long.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Decay matrices only: not biases, norms, the class token, or position parameters."""
    decayed: list[nn.Parameter] = []
    undecayed: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        plain = parameter.ndim < 2 or "token" in name or "pos_embed" in name or "relative_position" in name
        (undecayed if plain else decayed).append(parameter)
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": undecayed, "weight_decay": 0.0}]


def learning_rate_factor(step: int, warmup_steps: int, total_steps: int) -> float:
    """Rise linearly over the warm-up, then fall along half a cosine to zero."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    return 0.5 * (1 + math.cos(math.pi * (step - warmup_steps) / (total_steps - warmup_steps)))


def fit(model: nn.Module, images: Tensor, labels: Tensor, recipe: Recipe) -> None:
    """Train the model in place; an incomplete last batch of an epoch is used too."""
    generator = torch.Generator().manual_seed(TRAINING_SEED)
    steps_per_epoch = math.ceil(len(images) / recipe.batch_size)
    optimiser = torch.optim.AdamW(parameter_groups(model, recipe.weight_decay), lr=recipe.learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser,
        lambda step: learning_rate_factor(
            step, recipe.warmup_epochs * steps_per_epoch, recipe.epochs * steps_per_epoch
        ),
    )
    model.train()
    for epoch in range(recipe.epochs):
        total = 0.0
        order = torch.randperm(len(images), generator=generator)
        for chosen in torch.split(order, recipe.batch_size):
            batch = normalise(augment(images[chosen], recipe, generator))
            loss = functional.cross_entropy(model(batch), labels[chosen], label_smoothing=recipe.label_smoothing)
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            nn.utils.clip_grad_norm_(model.parameters(), recipe.gradient_norm)
            optimiser.step()
            schedule.step()
            total += loss.item() * len(chosen)
        if (epoch + 1) % 10 == 0:
            print(f"  epoch {epoch + 1:3d}/{recipe.epochs}  training loss {total / len(images):.4f}", flush=True)


def top1(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the share of images whose largest logit is the label's."""
    model.eval()
    with torch.inference_mode():
        logits = torch.cat([model(batch) for batch in torch.split(normalise(images), 100)])
    return float((logits.argmax(dim=1) == labels).double().mean())


def make_deterministic() -> None:
    """Fix the seed, the algorithms and the number of threads."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(TRAINING_SEED)


def save_weights(model: nn.Module, path: Path) -> None:
    """Write the float32 state dict under timm's key names; one metadata entry keeps the bytes stable."""
    state = {key: value.detach().float().contiguous() for key, value in model.state_dict().items()}
    save_file(state, path, metadata={"format": "pt"})


def train_model(name: str, digits: Digits, output: Path) -> Outcome:
    """Train one model on the train split, save it and measure it."""
    make_deterministic()
    print(f"{name}: training", flush=True)
    model = build_model(name)
    initialise(model)
    start = time.perf_counter()
    fit(model, *subset(digits, SPLIT_TRAIN), RECIPES[name])
    seconds = time.perf_counter() - start
    path = output / f"{name}.safetensors"
    save_weights(model, path)
    return Outcome(
        name=name,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        seconds=seconds,
        calibration_top1=top1(model, *subset(digits, SPLIT_CALIBRATION)),
        test_top1=top1(model, *subset(digits, SPLIT_TEST)),
        file_bytes=path.stat().st_size,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
    )


def print_table(outcomes: list[Outcome]) -> None:
    """Print one line for each trained model."""
    print(f"{'model':<12} {'parameters':>10} {'bytes':>9} {'seconds':>8} {'calib':>7} {'test':>7}  sha256")
    for outcome in outcomes:
        print(
            f"{outcome.name:<12} {outcome.parameters:>10} {outcome.file_bytes:>9} {outcome.seconds:>8.1f} "
            f"{outcome.calibration_top1:>7.2%} {outcome.test_top1:>7.2%}  {outcome.sha256}"
        )


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Train the embedded digit models.")
    parser.add_argument("--output", type=Path, default=DIGITS_FOLDER, help="folder to write to")
    parser.add_argument("--model", choices=MODEL_NAMES, help="train only this model; default: both")
    parser.add_argument(
        "--data", action="store_true", help=f"first write {DATA_NAME} from scikit-learn and train on it"
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Write the data if asked, train the chosen models and print the table."""
    options = parse_arguments(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    data_path = DIGITS_FOLDER / DATA_NAME
    if options.data:
        data_path = options.output / DATA_NAME
        write_data(data_path)
    digits = read_data(data_path)
    names = [options.model] if options.model else list(MODEL_NAMES)
    print_table([train_model(name, digits, options.output) for name in names])


if __name__ == "__main__":
    main()
