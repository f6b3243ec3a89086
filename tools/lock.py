"""The tested set with hashes: `python tools/lock.py` asks the package index for what constraints.txt pins, and writes
requirements.lock. pip then installs these wheels and no others, on any system that has one of them:

    pip install --require-hashes --no-deps -r requirements.lock

torch and torchvision are left out: which build is right (CPU, CUDA) depends on the machine, and each has hashes of its
own. Sources are left out as well: installing one runs its build.
"""

from __future__ import annotations

import re
import sys
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS, LOCK = ROOT / "constraints.txt", ROOT / "requirements.lock"
INDEX = "https://pypi.org/simple"
BUILDS_OF_THEIR_OWN = ("torch", "torchvision")
_FILE = re.compile(r'href="[^"#]*/([^"/#]+\.whl)#sha256=([0-9a-f]{64})"')


def pins(text: str) -> dict[str, str]:
    """name==version, line by line -> version by name, lower-case and with dashes."""
    found = (line.partition("==") for line in text.splitlines() if line and not line.startswith(("#", " ")))
    return {normal(name): version.partition(" ")[0] for name, _, version in found}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def wheels(page: str, version: str) -> dict[str, str]:
    """Of the page of a package: the wheels of a version, and their SHA-256."""
    return {file: digest for file, digest in _FILE.findall(page) if file.split("-")[1] == version}


def locked(name: str, version: str, found: dict[str, str]) -> str:
    if not found:
        raise SystemExit(f"{name} {version} has no wheel on {INDEX}")
    return " \\\n".join([f"{name}=={version}", *(f"    --hash=sha256:{digest}" for digest in sorted(found.values()))])


def main() -> int:
    lines = ["# Written by tools/lock.py from constraints.txt; torch and torchvision are not in it."]
    for name, version in sorted(pins(CONSTRAINTS.read_text(encoding="utf-8")).items()):
        if name not in BUILDS_OF_THEIR_OWN:
            with urllib.request.urlopen(f"{INDEX}/{name}/", timeout=60) as answer:
                lines.append(locked(name, version, wheels(answer.read().decode(), version)))
    LOCK.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(lines) - 1} packages in {LOCK.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
