"""Do two versions of this repository write the same files? `python tools/same_exports.py --before COMMIT`

Exports the embedded models at 8, 6 and 4 bits, by default and with --paper, once with the code of COMMIT and once with
the code as it lies here, and compares the bytes of model.onnx and float.onnx and every site of plan.json. Ends with 1
if anything differs. Both run in the interpreter that runs this.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODELS, BITS, FORMS = ("vit_digits", "swin_digits"), (8, 6, 4), ((), ("--paper",))


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ptq4vit_onnx_") as folder:
        tree = Path(folder) / "tree"
        subprocess.run(
            ["git", "-C", str(ROOT), "worktree", "add", "--quiet", "--detach", str(tree), commit], check=True
        )
        try:
            yield tree
        finally:
            subprocess.run(["git", "-C", str(ROOT), "worktree", "remove", "--force", str(tree)], check=True)


def export(tree: Path, model: str, bits: int, form: tuple[str, ...], output: Path) -> None:
    """Run the command from `tree`: the first place that Python looks for the package is the folder it is run in."""
    command = [sys.executable, "-m", "ptq4vit_onnx", "export", "--model", model, "--bits", str(bits), *form]
    subprocess.run([*command, "--output", str(output)], cwd=tree, check=True, stdout=subprocess.DEVNULL)


def differences(before: Path, after: Path) -> list[str]:
    """What differs between two exports, in words."""
    found = [
        name for name in ("model.onnx", "float.onnx") if (before / name).read_bytes() != (after / name).read_bytes()
    ]
    old, new = (json.loads((folder / "plan.json").read_text(encoding="utf-8"))["sites"] for folder in (before, after))
    return found + [f"plan of {site}" for site in sorted({*old, *new}) if old.get(site) != new.get(site)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", required=True, metavar="COMMIT")
    commit = parser.parse_args().before
    failed = 0
    with checkout(commit) as tree, tempfile.TemporaryDirectory(prefix="ptq4vit_onnx_") as folder:
        for model in MODELS:
            for bits in BITS:
                for form in FORMS:
                    places = [Path(folder) / f"{side}_{model}_{bits}{''.join(form)}" for side in ("before", "after")]
                    for source, output in zip((tree, ROOT), places, strict=True):
                        export(source, model, bits, form, output)
                    found = differences(*places)
                    failed += bool(found)
                    print(f"{model:12} W{bits}A{bits} {' '.join(form) or 'defaults':9}", ", ".join(found) or "the same")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
