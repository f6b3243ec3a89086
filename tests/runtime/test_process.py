"""How the process waits and keeps memory."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from typing import Any

import pytest

from ptq4vit_onnx.runtime import process

_FAULTS = """
import resource
from ptq4vit_onnx.runtime import process
{call}
import threading, torch
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
work = lambda: torch.ones(20_000_000).add(1)
def run(times):
    for _ in range(times):
        if {threads}:
            worker = threading.Thread(target=work)
            worker.start()
            worker.join()
        else:
            work()
run(20)
before = faults()
run(5)
print(faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told how to keep memory")
@pytest.mark.parametrize("threads", [False, True])
def test_large_tensors_reuse_freed_memory(threads: bool, run_python: Callable[..., Any]) -> None:
    # A tensor is 80 MB (a thread's own heap takes none of more than 64); ten of them are made, after a start that
    # leaves enough memory behind. Each needs all of its pages again unless freed memory is reused; how many pages that
    # is, the machine decides. In interpreters of their own: how memory is kept is a setting of the whole process.
    calls = ("", "process.prepared().__enter__()")
    default, kept = (int(run_python(_FAULTS.format(call=call, threads=threads)).stdout) for call in calls)
    assert kept < default / 2


_RESIDENT = """
import resource
from pathlib import Path
from ptq4vit_onnx.runtime import process
process.keep_freed_memory()
import torch
resident = lambda: resource.getpagesize() * int(Path("/proc/self/statm").read_text().split()[1])
pieces = [torch.ones(10_000_000) for _ in range(10)]
del pieces
kept = resident()
process.give_back_freed_memory()
print(kept - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told how to keep memory")
def test_kept_memory_can_be_given_back(run_python: Callable[..., Any]) -> None:
    assert int(run_python(_RESIDENT).stdout) > 200_000_000  # most of the 400 MB that were freed


@pytest.mark.parametrize("setting", ["MALLOC_TRIM_THRESHOLD_", "MALLOC_ARENA_MAX"])
def test_a_user_who_has_set_malloc_is_left_alone(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    monkeypatch.setattr(process, "keep_freed_memory", lambda: called.append(1))
    monkeypatch.setenv(setting, "1")
    with process.prepared():
        assert not called
    monkeypatch.delenv(setting)
    with process.prepared():
        assert called


@pytest.mark.parametrize("policy", [None, "ACTIVE"])
def test_threads_sleep_while_they_wait_unless_the_user_says_otherwise(
    policy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if policy is not None:
        monkeypatch.setenv("OMP_WAIT_POLICY", policy)
    before = dict(os.environ)
    with pytest.raises(ZeroDivisionError), process.prepared(), process.prepared():
        assert os.environ["OMP_WAIT_POLICY"] == (policy or "PASSIVE")
        _ = 1 // 0
    assert dict(os.environ) == before


def test_the_python_api_prepares_the_process_before_torch_is_imported(run_python: Callable[..., Any]) -> None:
    """torch reads the policy when it is imported; afterwards the variable is gone."""
    done = run_python(
        "import os, sys\n"
        "os.environ.pop('OMP_WAIT_POLICY', None)\n"
        "from importlib.abc import MetaPathFinder\n"
        "class Watch(MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'torch': print(os.environ.get('OMP_WAIT_POLICY'))\n"
        "sys.meta_path.insert(0, Watch())\n"
        "from ptq4vit_onnx import export\n"
        "try: export('vit_digits', checkpoint='absent.pth', output='nowhere')\n"
        "except Exception as error: print(error)\n"
        "print(os.environ.get('OMP_WAIT_POLICY'))"
    )
    policy, refusal, after = done.stdout.splitlines()
    assert (policy, after) == ("PASSIVE", "None") and refusal.startswith("no checkpoint at absent.pth")
