"""Kill exports, at random moments and between the steps of the swap: is the old or the new folder whole each time?

    python benchmarks/kills.py --count 200            # all of it; --first 40 --count 20 does a part, rows are kept

Every kill is of a process that runs the command's own `main` on the embedded model, into a folder that is not there or
that it replaces. Three in four die at a random moment of the export, by SIGKILL, SIGINT or SIGTERM; the fourth dies
just before one step on the file system, counted from the first file that is flushed, with folders exchanged in one step
or, as on a file system that cannot, renamed. After each:
    at once   the old or the new folder is whole under its name (without an exchange: or the next start puts it back)
    next      the same command ends well, its files have the bytes of an undisturbed export, and nothing else is left,
              next to the folder or among temporary files
Ends with 1 if any of this fails.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # processes are forked: no thread may have been started before
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import results

QUICK = ("export", "--model", "vit_digits", "--images", "8", "--candidates", "20", "--metric", "mse", "--force")
PLAIN = ("export", "--model", "vit_digits", "--images", "8")  # which replaces nothing
IMAGES = 24  # of which 8 calibrate
OLD, NEW = (*QUICK, "--bits", "6"), (*QUICK, "--bits", "8")
COMPARED = ("model.onnx", "float.onnx", "plan.json")
EXPORTED = {*COMPARED, "report.json", "report.html"}
SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM)
STEPS = ("rename", "replace", "unlink", "rmdir", "mkdir", "open", "fsync")
SWAP_STEPS = 26  # from the first flush to the end; a step that does not come is an export that ended well
IMPORTED = ("torch._dynamo", "torch.onnx", "ptq4vit_onnx.calibration.calibrate", "ptq4vit_onnx.pipeline",
            "ptq4vit_onnx.float_export.exporter", "ptq4vit_onnx.proof.prove")  # fmt: skip
Bytes = dict[str, bytes]


class Kills:
    """place: where exports are killed, next to nothing else. temporary: the processes' own place for such files."""

    def __init__(self, scratch: Path, seed: int) -> None:
        self.seed, self.scratch = seed, scratch
        self.place, self.temporary = scratch / "at" / "out", scratch / "temporary"
        warm_up(scratch / "images.npz")  # torch makes its cache among temporary files, before these are looked at
        for folder in (self.place.parent, self.temporary):
            folder.mkdir()
        tempfile.tempdir = str(self.temporary)
        self.old, self.new = self._undisturbed("old", OLD), self._undisturbed("new", NEW)
        started = time.perf_counter()
        self.run(NEW)
        self.seconds = time.perf_counter() - started

    def _undisturbed(self, name: str, command: tuple[str, ...]) -> Bytes:
        folder = self.scratch / name
        assert self.wait(self.start(command, folder)) == 0
        return contents(folder)

    def one(self, index: int) -> dict[str, Any]:
        """The kill of this number, and what was there afterwards."""
        draw = random.Random(f"{self.seed}-{index}")
        number, forced = SIGNALS[index % 3], index % 4 == 3
        replaces = forced or bool(index // 3 % 2)
        shutil.rmtree(self.place, ignore_errors=True)
        if replaces:
            shutil.copytree(self.scratch / "old", self.place)
        row: dict[str, Any] = {"kill": index, "signal": number.name, "replaces": replaces}
        if forced:
            row |= {"step": 1 + index // 4 % SWAP_STEPS, "exchange": index // 4 // SWAP_STEPS % 2 == 0}
            child = self.start(NEW, self.place, dies_at(row["step"], number, row["exchange"]))
        else:
            row |= {"second": round(draw.uniform(0, 1.02 * self.seconds), 2)}
            child = self.start(NEW, self.place)
            time.sleep(row["second"])
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)
        row["exit"] = self.wait(child)
        row["journal"] = (self.place.parent / ".out.resume.jsonl").exists()
        row["at once"] = self._state()
        if row["at once"] == "none" and replaces:  # the next start puts it back, and then refuses to replace it
            assert self.wait(self.start(PLAIN, self.place)) == 2
            row["after the next start"] = self._state()
        row["next exit"] = self.run(NEW)
        row["same bytes"] = contents(self.place) == self.new
        row["left"] = sorted(entry.name for entry in (*self.place.parent.iterdir(), *self.temporary.iterdir())
                             if entry != self.place)  # fmt: skip
        return row

    def _state(self) -> str:
        if not self.place.exists():
            return "none"
        names = {entry.name for entry in self.place.iterdir()}
        found = contents(self.place) if names == EXPORTED else None
        return "new" if found == self.new else "old" if found == self.old else "mixed"

    def run(self, command: tuple[str, ...]) -> int:
        return self.wait(self.start(command, self.place))

    def start(self, command: tuple[str, ...], output: Path, prepare: Callable[[], None] = lambda: None) -> int:
        """A process that runs the command; libraries are imported already, so that seconds are the export's."""
        from ptq4vit_onnx.cli.main import main

        child = os.fork()
        if child:
            return child
        code = 3
        try:
            log = os.open(self.scratch / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            prepare()
            code = main([*command, "--data", str(self.scratch / "images.npz"), "--output", str(output)])
        except KeyboardInterrupt:  # before or after the command
            code = 130
        finally:
            os._exit(code)

    def wait(self, child: int) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def dies_at(last: int, number: signal.Signals, exchanges: bool) -> Callable[[], None]:
    """Has this process send itself a signal just before the step `last` on the file system, from the first flush on."""

    def prepare() -> None:
        from ptq4vit_onnx.files import outputs
        from ptq4vit_onnx.files.exchange import exchange

        seen = 0

        def counted(function: Callable[..., Any]) -> Callable[..., Any]:
            def step(*arguments: Any, **options: Any) -> Any:
                nonlocal seen
                if seen or function is flush:
                    seen += 1
                    if seen == last:
                        os.kill(os.getpid(), number)
                return function(*arguments, **options)

            return step

        flush = os.fsync
        for name in STEPS:
            setattr(os, name, counted(getattr(os, name)))
        vars(outputs)["exchange"] = counted(exchange if exchanges else lambda *_: False)

    return prepare


def contents(folder: Path) -> Bytes:
    return {name: (folder / name).read_bytes() for name in COMPARED if (folder / name).exists()}


def faults(row: dict[str, Any]) -> list[str]:
    """What must not be, in words."""
    after = row.get("after the next start", row["at once"])
    allowed = ("old", "new") if row["replaces"] else ("none", "new")
    return [
        *([f"the folder is {after}"] if after not in allowed else []),
        *(
            ["the folder was away"]
            if row["at once"] == "none" and row["replaces"] and row.get("exchange", True)
            else []
        ),
        *([f"the next export ends with {row['next exit']}"] if row["next exit"] else []),
        *([] if row["same bytes"] else ["other bytes"]),
        *([f"left behind: {', '.join(row['left'])}"] if row["left"] else []),
        *([f"exit {row['exit']}"] if row["exit"] not in (0, 130, -signal.SIGKILL, -signal.SIGTERM) else []),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parsed = parser.parse_args()
    kept = {row["kill"]: row for row in results.read("kills").get("rows", [])}
    with tempfile.TemporaryDirectory() as scratch:
        kills = Kills(Path(scratch), parsed.seed)
        for index in range(parsed.first, parsed.first + parsed.count):
            kept[index] = row = kills.one(index)
            row["faults"] = faults(row)
            print(*(f"{key} {value}" for key, value in row.items()), sep=", ", flush=True)
    rows = [kept[index] for index in sorted(kept)]
    results.write("kills", rows, seed=parsed.seed, command=" ".join(NEW), seconds=round(kills.seconds, 1))
    print(Counter((row["signal"], "step" in row, row["at once"]) for row in rows))
    failed = [row["kill"] for row in rows if row["faults"]]
    print(f"{len(rows)} kills, {sum('step' in row for row in rows)} of them at a step, failed: {failed or 'none'}")
    return 1 if failed else 0


def warm_up(images: Path) -> None:
    """What is the same in every export, before processes are forked from this one: imports, and torch's exporter's
    tables. Leaves a few images, with which an export takes seconds."""
    for name in IMPORTED:
        importlib.import_module(name)
    import numpy as np

    from ptq4vit_onnx.float_export.exporter import export_float
    from ptq4vit_onnx.images.embedded import embedded_digits
    from ptq4vit_onnx.model_loading.load import load, resolve
    from ptq4vit_onnx.network.discovery import discover

    model = load(resolve("vit_digits"))
    digits = embedded_digits(model.preprocessing, "calibration", IMAGES).images
    export_float(model, discover(model.module, digits[:1]))
    np.savez(images, images=digits)


if __name__ == "__main__":
    sys.exit(main())
