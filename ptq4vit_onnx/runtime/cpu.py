"""What this CPU can do that decides the speed of integer kernels."""

from __future__ import annotations

import platform
import re
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class CpuFeatures:
    """What decides the speed of integer kernels. vnni: 8-bit products add up in 32 bits, unsaturated."""

    name: str
    machine: str
    avx2: bool
    avx512: bool
    vnni: bool
    amx: bool
    arm_dot: bool
    arm_i8mm: bool

    def __str__(self) -> str:
        labels = {"avx2": "AVX2", "avx512": "AVX-512", "vnni": "VNNI", "amx": "AMX"}
        if self.machine.lower() in {"aarch64", "arm64"}:
            labels = {"arm_dot": "dot product", "arm_i8mm": "I8MM"}
        has = [label for field, label in labels.items() if getattr(self, field)]
        lacks = [f"no {label}" for field, label in labels.items() if not getattr(self, field)]
        return f"{self.name} ({self.machine}; {', '.join(has + lacks)})"

    def to_data(self) -> dict[str, Any]:
        return asdict(self)


def cpu_features() -> CpuFeatures:
    """Read from the operating system; a feature that cannot be found out counts as absent."""
    name, flags = _cpu_name_and_flags()
    return CpuFeatures(
        name=name or platform.processor() or "unknown CPU",
        machine=platform.machine(),
        avx2="avx2" in flags,
        avx512="avx512f" in flags,
        vnni=bool(flags & {"avx512_vnni", "avx512vnni", "avx_vnni", "avxvnni"}),
        amx=bool(flags & {"amx_int8"}),
        arm_dot=bool(flags & {"asimddp", "hw.optional.arm.feat_dotprod"}),
        arm_i8mm=bool(flags & {"i8mm", "hw.optional.arm.feat_i8mm"}),
    )


def _cpu_name_and_flags() -> tuple[str, set[str]]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = _sysctl() if platform.system() == "Darwin" else ""
    name = re.search(r"(?:model name|Model|machdep\.cpu\.brand_string)\s*:\s*(.+)", text)
    lists = re.findall(r"(?:flags|Features|machdep\.cpu\.\w*features)\s*:\s*(.+)", text)
    flags = {flag.lower() for line in lists for flag in line.split()}
    flags |= {key.lower() for key in re.findall(r"^(hw\.optional\.[\w.]+): 1$", text, re.MULTILINE)}
    return (name.group(1).strip() if name else ""), flags


def _sysctl() -> str:
    try:
        return subprocess.run(["sysctl", "-a"], capture_output=True, text=True, timeout=10).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
