"""A Ray cluster of a head and a second node on this machine, and what can be killed of it."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

PORT = "6393"
JOURNAL = ".table1.csv.resume.jsonl"  # what a driver keeps until its table is whole


@dataclass(frozen=True)
class Cluster:
    address: str
    environment: dict[str, str]
    token: str


@contextmanager
def cluster() -> Iterator[Cluster]:
    """A head and a second node of one CPU each, as processes of their own, ended by their ids: there may be others."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="mm") as place:
        token = Path(place) / "token"  # of this cluster alone
        token.touch(0o600)
        token.write_text(secrets.token_hex(32))
        own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_USAGE_STATS_ENABLED": "0"}
        environment, ray = {**os.environ, "OMP_NUM_THREADS": "1", **own}, str(Path(sys.executable).with_name("ray"))
        head = ["--head", "--port", PORT, "--temp-dir", place, "--include-dashboard=false"]
        try:
            for options in (head, ["--address", f"127.0.0.1:{PORT}"]):
                command = [ray, "start", *options, "--num-cpus", "1"]
                subprocess.run(command, env=environment, check=True, capture_output=True)
            yield Cluster(f"127.0.0.1:{PORT}", environment, str(token))
        finally:
            for number in _processes(str(token)):
                _kill(number)


def _processes(token: str, program: str = "") -> list[int]:
    """Of the cluster with this token, which all its processes have in their environment: those that run `program`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environment, line = (entry / "environ").read_bytes(), (entry / "cmdline").read_bytes()
        except OSError:
            continue
        is_at_work = not (line.startswith(b"ray::") and (b"IDLE" in line or b"Agent" in line))
        if token.encode() in environment and program.encode() in line and (is_at_work or not program):
            found.append(int(entry.name))
    return sorted(found)


def _kill(number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(number, signal.SIGKILL)


def _kill_workers(_driver: subprocess.Popen[bytes], _place: Path, own: Cluster) -> int:
    """Two workers in the middle of a task, one after the other."""
    killed: set[int] = set()
    while len(killed) < 2:
        time.sleep(0.5)
        busy = [number for number in _processes(own.token, "ray::") if number not in killed and _spent(number) > 4]
        for number in busy[:1]:
            _kill(number)
            killed.add(number)
    return len(killed)


def _kill_node(_driver: subprocess.Popen[bytes], place: Path, own: Cluster) -> int:
    """The raylet that was started last, once it has had a task."""
    _wait_for(place, 2)
    _kill(_processes(own.token, "raylet/raylet")[-1])
    return 1


def _kill_driver(driver: subprocess.Popen[bytes], place: Path, _own: Cluster) -> int:
    _wait_for(place, 3)
    driver.kill()
    return 1


def _wait_for(place: Path, count: int) -> None:
    """Until so many tasks have ended."""
    kept = place / JOURNAL
    while not kept.exists() or kept.read_text().count("\n") < count:
        time.sleep(0.2)


def _spent(number: int) -> float:
    """CPU seconds of a process."""
    try:
        fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


FAULTS: dict[str, Callable[[subprocess.Popen[bytes], Path, Cluster], int]] = {
    "nothing": lambda _driver, _place, _own: 0,
    "two workers": _kill_workers,
    "a node": _kill_node,
    "the driver": _kill_driver,
}
