"""Where the command starts: an interruption while its modules are being imported is one line as well."""

from __future__ import annotations

import sys


def main() -> int:
    try:
        from ptq4vit_onnx.cli.main import main as run

        return run()
    except KeyboardInterrupt:  # before or after the command; within it, it has been answered
        print("ptq4vit-onnx: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
