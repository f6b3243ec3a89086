"""The features of this CPU that decide the speed of integer kernels.

Linux lists them in /proc/cpuinfo, macOS through sysctl; elsewhere they are unknown. py-cpuinfo is no substitute. It
starts several processes without a time limit and needs a second where reading the file needs 0.3 ms, and on macOS
it does not ask for the features of ARM.
"""

from __future__ import annotations

import platform
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

X86 = {"avx2": "AVX2", "avx512": "AVX-512", "vnni": "VNNI", "amx": "AMX"}
ARM = {"arm_dot": "dot product", "arm_i8mm": "I8MM"}
# Each feature by the names that the operating systems give it.
NAMES = {
    "avx2": {"avx2"},
    "avx512": {"avx512f"},
    "vnni": {"avx512_vnni", "avx512vnni", "avx_vnni", "avxvnni"},
    "amx": {"amx_int8"},
    "arm_dot": {"asimddp", "hw.optional.arm.feat_dotprod"},
    "arm_i8mm": {"i8mm", "hw.optional.arm.feat_i8mm"},
}


@dataclass(frozen=True)
class CpuFeatures:
    """True: the CPU has the feature; False: it has not; None: the operating system does not say.

    vnni: products of 8-bit integers are added up in 32 bits without saturation. arm_dot, arm_i8mm: the same on ARM, for
    vectors and for small matrices.
    """

    name: str
    machine: str
    avx2: bool | None
    avx512: bool | None
    vnni: bool | None
    amx: bool | None
    arm_dot: bool | None
    arm_i8mm: bool | None

    def __str__(self) -> str:
        labels = ARM if self.machine.lower() in {"aarch64", "arm64"} else X86
        found = {label: getattr(self, field) for field, label in labels.items()}
        has = [label for label, known in found.items() if known]
        lacks = [f"no {label}" for label, known in found.items() if known is False]
        unknown = [f"{label} unknown" for label, known in found.items() if known is None]
        return f"{self.name} ({self.machine}; {', '.join(has + lacks + unknown)})"


def cpu_features() -> CpuFeatures:
    text = _system_text()
    name = re.search(r"(?:model name|Model|machdep\.cpu\.brand_string)\s*:\s*(.+)", text)
    flags = _flags(text)
    found = {field: bool(flags & names) if flags else None for field, names in NAMES.items()}
    called = name.group(1).strip() if name else platform.processor()
    return CpuFeatures(called or "unknown CPU", platform.machine(), **found)


def _flags(text: str) -> set[str]:
    """The names of all features that the CPU has, in lower case; empty where the system lists none."""
    lists = re.findall(r"(?:flags|Features|machdep\.cpu\.\w*features)\s*:\s*(.+)", text)
    flags = {flag.lower() for line in lists for flag in line.split()}
    return flags | {key.lower() for key in re.findall(r"^(hw\.optional\.[\w.]+): 1$", text, re.MULTILINE)}


def _system_text() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return _sysctl() if platform.system() == "Darwin" else ""


def _sysctl() -> str:
    try:
        return subprocess.run(["sysctl", "-a"], capture_output=True, text=True, timeout=10).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
