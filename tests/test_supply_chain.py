"""What users install and what they need not trust: hashes of the tested set, and no network where none is needed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.lock import BUILDS_OF_THEIR_OWN, locked, pins, wheels

ROOT = Path(__file__).resolve().parent.parent
PAGE = (
    '<a href="https://files/a/some_pkg-1.2-py3-none-any.whl#sha256=' + "a" * 64 + '" data-x="">..</a>'
    '<a href="https://files/b/some_pkg-1.2.1-py3-none-any.whl#sha256=' + "b" * 64 + '">..</a>'
    '<a href="https://files/c/some_pkg-1.2.tar.gz#sha256=' + "c" * 64 + '">..</a>'
)  # fmt: skip


def test_the_lock_pins_what_constraints_pins_each_with_hashes() -> None:
    pinned = pins((ROOT / "constraints.txt").read_text())
    lock = (ROOT / "requirements.lock").read_text()
    entries = re.findall(r"^(\S+)==(\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", lock, re.MULTILINE)
    assert {name: version for name, version, _ in entries} == {
        name: version for name, version in pinned.items() if name not in BUILDS_OF_THEIR_OWN
    }, "run python tools/lock.py"
    assert lock.count("==") == len(entries) and set(BUILDS_OF_THEIR_OWN) <= set(pinned)


def test_only_wheels_of_the_pinned_version_are_locked() -> None:
    found = wheels(PAGE, "1.2")
    assert found == {"some_pkg-1.2-py3-none-any.whl": "a" * 64}
    assert locked("some-pkg", "1.2", found) == "some-pkg==1.2 \\\n    --hash=sha256:" + "a" * 64
    with pytest.raises(SystemExit, match="some-pkg 7 has no wheel"):
        locked("some-pkg", "7", wheels(PAGE, "7"))


@pytest.mark.parametrize("command", [["--help"], ["export", "--help"], ["models"], ["export", "--model", "deit_bb"]])
def test_help_imports_and_refusals_open_no_socket(run_python: Callable[..., object], command: list[str]) -> None:
    """An audit hook sees every socket, whichever library opens it."""
    run_python(
        "import sys\n"
        "def watch(event, arguments):\n"
        "    if event.startswith('socket.'): raise SystemError(f'{event} {arguments}')\n"
        "sys.addaudithook(watch)\n"
        "from ptq4vit_onnx.cli import main as cli\n"
        "try: cli.main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "import socket\n"
        "try: socket.create_connection(('127.0.0.1', 9))\n"
        "except SystemError: sys.exit(0)\n"
        "sys.exit('the hook does not see sockets')",
        *command,
    )


def test_importing_everything_opens_no_socket(run_python: Callable[..., object]) -> None:
    run_python(
        "import sys\n"
        "def watch(event, arguments):\n"
        "    if event in ('socket.connect', 'socket.getaddrinfo'): raise SystemError(f'{event} {arguments}')\n"
        "sys.addaudithook(watch)\n"
        "import ptq4vit_onnx.api, ptq4vit_onnx.pipeline, ptq4vit_onnx.studies.reproduce\n"
        "import ptq4vit_onnx.float_export.exporter, ptq4vit_onnx.network.tape\n"
    )
