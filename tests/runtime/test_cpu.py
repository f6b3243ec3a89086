"""The CPU's features, as each operating system tells them: there, not there, or unknown."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ptq4vit_onnx.runtime.cpu import cpu_features


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """(system, machine, cpuinfo, sysctl) -> another computer; a text that is None cannot be had there."""

    def be(system: str, machine: str, cpuinfo: str | None = None, sysctl: str | None = None) -> None:
        def read_text(*_: Any, **__: Any) -> str:
            if cpuinfo is None:
                raise FileNotFoundError
            return cpuinfo

        def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
            if sysctl is None:
                raise subprocess.TimeoutExpired(command, 10)
            return subprocess.CompletedProcess(command, 0, sysctl, "")

        monkeypatch.setattr(Path, "read_text", read_text)
        monkeypatch.setattr(subprocess, "run", run)
        monkeypatch.setattr(platform, "system", lambda: system)
        monkeypatch.setattr(platform, "machine", lambda: machine)
        monkeypatch.setattr(platform, "processor", lambda: "")

    return be


def test_linux_lists_the_features_in_cpuinfo(pretend: Callable[..., None]) -> None:
    pretend("Linux", "x86_64", "model name\t: Some CPU\nflags\t\t: fpu avx2 avx512f avx512_vnni\n")
    features = cpu_features()
    assert (features.avx2, features.avx512, features.vnni, features.amx) == (True, True, True, False)
    assert str(features) == "Some CPU (x86_64; AVX2, AVX-512, VNNI, no AMX)"


def test_linux_on_arm_lists_them_too(pretend: Callable[..., None]) -> None:
    pretend("Linux", "aarch64", "processor\t: 0\nFeatures\t: fp asimd asimddp\nModel\t\t: Some Board\n")
    assert str(cpu_features()) == "Some Board (aarch64; dot product, no I8MM)"


def test_macos_says_them_through_sysctl(pretend: Callable[..., None]) -> None:
    text = (
        "hw.optional.arm.FEAT_DotProd: 1\nhw.optional.arm.FEAT_I8MM: 0\nmachdep.cpu.brand_string: Apple M1\n"
        "machdep.cpu.core_count: 8\n"
    )
    pretend("Darwin", "arm64", sysctl=text)
    assert str(cpu_features()) == "Apple M1 (arm64; dot product, no I8MM)"
    text = "machdep.cpu.brand_string: Intel\nmachdep.cpu.features: FPU SSE\nmachdep.cpu.leaf7_features: AVX2 AVX512F\n"
    pretend("Darwin", "x86_64", sysctl=text)
    assert str(cpu_features()) == "Intel (x86_64; AVX2, AVX-512, no VNNI, no AMX)"


@pytest.mark.parametrize(("system", "cpuinfo"), [("Windows", None), ("Darwin", None), ("Linux", "processor\t: 0\n")])
def test_features_that_the_system_does_not_tell_are_unknown(
    system: str, cpuinfo: str | None, pretend: Callable[..., None]
) -> None:
    pretend(system, "x86_64", cpuinfo)
    features = cpu_features()
    assert features.avx2 is features.vnni is features.amx is features.arm_dot is None
    assert str(features) == "unknown CPU (x86_64; AVX2 unknown, AVX-512 unknown, VNNI unknown, AMX unknown)"
