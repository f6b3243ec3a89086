"""Writes docs/plan.schema.json, the JSON schema of plan.json: `python tools/plan_schema.py`.

With --check it writes nothing and ends with 1 if the file is out of date.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ptq4vit_onnx.plan.plan_json import plan_schema

FILE = Path(__file__).resolve().parents[1] / "docs" / "plan.schema.json"


def schema_text() -> str:
    return json.dumps(plan_schema(), indent=1) + "\n"


def main(arguments: list[str]) -> int:
    if "--check" not in arguments:
        FILE.write_text(schema_text(), encoding="utf-8")
    elif not FILE.is_file() or FILE.read_text(encoding="utf-8") != schema_text():
        print(f"{FILE} is out of date; run python tools/plan_schema.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
