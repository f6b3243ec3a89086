"""What the commands share: types of arguments, groups of arguments, and the result of a command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ptq4vit_onnx.cli.tables import table
from ptq4vit_onnx.limits import MAX_BATCH, MAX_COUNT, MAX_RUNS, MAX_SECONDS, MAX_THREADS
from ptq4vit_onnx.runtime.engines import ENGINES, EngineName
from ptq4vit_onnx.tasks import ledger
from ptq4vit_onnx.tasks.start import opened, workers_from
from ptq4vit_onnx.tasks.task import Tasks

One = TypeVar("One")


@dataclass(frozen=True)
class Outcome:
    """What a command prints on standard output, and its exit code."""

    text: str
    code: int = 0


def positive(text: str) -> int:
    return _whole(text, 1)


def not_negative(text: str) -> int:
    return _whole(text, 0)


def thread_count(text: str) -> int:
    return _whole(text, 1, MAX_THREADS)


def batch_size(text: str) -> int:
    return _whole(text, 1, MAX_BATCH)


def run_count(text: str) -> int:
    return _whole(text, 1, MAX_RUNS)


def second_count(text: str) -> int:
    return _whole(text, 0, MAX_SECONDS)


def several(kind: Callable[[str], One]) -> Callable[[str], tuple[One, ...]]:
    """A type of argument: 1,2,2,4 -> (1, 2, 4), each parsed by `kind`."""
    return lambda text: tuple(dict.fromkeys(kind(part) for part in text.split(",")))


def engine_name(text: str) -> EngineName:
    for name in ENGINES:
        if text.strip() == name:
            return name
    raise argparse.ArgumentTypeError(f"expected one of {', '.join(ENGINES)}, got {text}")


def _whole(text: str, least: int, most: int = MAX_COUNT) -> int:
    value = int(text) if text.strip().lstrip("+-").isdecimal() and len(text) < 100 else least - 1
    if value < least:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least {least}, got {text}")
    if value > most:
        raise argparse.ArgumentTypeError(f"expected a whole number of at most {most}, got {text}")
    return value


def number(text: str) -> float:
    """A number that is at least 0."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number of at least 0, got {text}")
    return value


def add_images(parser: argparse.ArgumentParser, may_skip: bool = False) -> None:
    """Arguments for the images a command measures on. may_skip: whether there is --skip-unreadable."""
    group = parser.add_argument_group("images")
    group.add_argument(
        "--data", type=Path, metavar="PATH",
        help="ImageFolder tree, labels.csv or images in a folder, .npy or .npz (built-in images)",
    )  # fmt: skip
    group.add_argument("--images", type=positive, metavar="N", help="use N images, picked alike (all)")
    group.add_argument("--where", metavar="COLUMN=VALUE", help="only these rows of labels.csv")
    if may_skip:
        group.add_argument(
            "--skip-unreadable", action="store_true", help="do without images that are damaged or missing (an error)"
        )


def add_running(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("running")
    group.add_argument("--threads", type=thread_count, default=0, metavar="N", help="threads of the engine (all cores)")
    group.add_argument("--batch", type=batch_size, default=8, metavar="N", help="images at once (8)")
    group.add_argument(
        "--engine", type=engine_name, default=ENGINES[0], metavar="NAME", help="onnxruntime or openvino (onnxruntime)"
    )


def add_workers(parser: argparse.ArgumentParser) -> None:
    """Arguments for sharing the work out among processes and machines."""
    group = parser.add_argument_group("several processes or machines", "the results are the same")
    group.add_argument("--jobs", type=thread_count, metavar="N", help="N processes, which share out the cores (one)")
    group.add_argument(
        "--ray", nargs="?", const="auto", metavar="ADDRESS",
        help="a Ray cluster: local (started here), auto (the one that this machine belongs to), ray://HOST:PORT",
    )  # fmt: skip


@contextmanager
def workers(parsed: argparse.Namespace) -> Iterator[Tasks | None]:
    """What runs the tasks of a command, None for this process alone. At the end, who did what, on standard error."""
    chosen = workers_from(parsed.ray, parsed.jobs)
    if chosen is None:
        yield None
        return
    with opened(chosen) as tasks:
        yield tasks
        if tasks.history:
            print(f"\n{table(ledger.rows(tasks.history))}", file=sys.stderr)
