"""Tasks on processes of this machine: results, faults, ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ptq4vit_onnx.errors import ParityError, UserError
from ptq4vit_onnx.progress import silent
from ptq4vit_onnx.tasks import ledger, local
from ptq4vit_onnx.tasks.start import LocalProcesses, opened
from ptq4vit_onnx.tasks.task import MOST_ATTEMPTS, DefectError, Task, Tasks, in_order
from tests.tasks import small_tasks

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tasks() -> Iterator[Tasks]:
    with opened(LocalProcesses(2)) as running:
        yield running


def is_running(process: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def wait_until(holds: Callable[[], bool], seconds: float = 30) -> bool:
    ends = time.monotonic() + seconds
    while not holds() and time.monotonic() < ends:
        time.sleep(0.02)
    return holds()


def test_results_are_in_the_order_of_the_tasks(tasks: Tasks) -> None:
    asked = [Task(str(number), small_tasks.square, (number,)) for number in range(20)]
    assert in_order(tasks, asked, "squares", silent) == [number * number for number in range(20)]


def test_a_task_that_is_handed_over_while_results_come_is_done(tasks: Tasks) -> None:
    tasks.submit(Task("first", small_tasks.square, (3,)))
    found = []
    for done in tasks.finished():
        found.append(done.value())
        if done.task.name == "first":
            tasks.submit(Task("second", small_tasks.square, (done.value(),)))
    assert found == [9, 81]


def test_the_cores_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
    assert [LocalProcesses(jobs).threads for jobs in (1, 2, 3, 16)] == [8, 4, 2, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert [LocalProcesses(jobs).threads for jobs in (1, 4, 16)] == [2, 2, 1]


def test_a_worker_has_the_threads_that_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    before = dict(os.environ)
    running = local.LocalTasks(1, 1)
    try:
        running.submit(Task("threads", small_tasks.threads))
        (done,) = running.finished()
    finally:
        running.close()
    assert done.value() == (1, 1)
    assert dict(os.environ) == before


def test_a_task_whose_process_is_killed_is_tried_again(tasks: Tasks, tmp_path: Path) -> None:
    before = len(tasks.history)
    tasks.submit(Task("dies twice", small_tasks.die_the_first, (2, tmp_path)))
    tasks.submit(Task("lives", small_tasks.square, (5,)))
    found = {done.task.name: done for done in tasks.finished()}
    assert found["dies twice"].value() == 3 and found["dies twice"].attempts == 3
    assert found["lives"].value() == 25
    assert any(row[-1] == "2" for row in ledger.rows(tasks.history[before:]))


def test_a_task_that_kills_every_process_is_given_up_and_the_others_are_not(tasks: Tasks, tmp_path: Path) -> None:
    tasks.submit(Task("poison", small_tasks.die_the_first, (99, tmp_path)))
    for number in range(4):
        tasks.submit(Task(str(number), small_tasks.square, (number,)))
    found = {done.task.name: done for done in tasks.finished()}
    assert sorted(done.value() for name, done in found.items() if name != "poison") == [0, 1, 4, 9]
    assert len(list(tmp_path.iterdir())) == MOST_ATTEMPTS
    with pytest.raises(UserError, match=r"its process died 3 times \(exit code -9\); is there enough memory"):
        found["poison"].value()


@pytest.mark.parametrize(
    ("kind", "error", "said"),
    [
        ("user", UserError, "no such image"),
        ("parity", ParityError, "other bits"),
        ("defect", DefectError, "ZeroDivisionError: by nothing"),
    ],
)
def test_an_error_is_what_it_would_be_here_and_stops_nobody(
    tasks: Tasks, kind: str, error: type[Exception], said: str
) -> None:
    tasks.submit(Task("fails", small_tasks.fail, (kind,)))
    tasks.submit(Task("works", small_tasks.square, (2,)))
    found = {done.task.name: done for done in tasks.finished()}
    assert found["works"].value() == 4 and found["fails"].attempts == 1
    with pytest.raises(error, match=said):
        found["fails"].value()


def test_a_warning_is_said_here_and_once(tasks: Tasks, caplog: pytest.LogCaptureFixture) -> None:
    assert in_order(tasks, [Task("warns", small_tasks.warn)], "", silent) == [None]
    assert [record.getMessage() for record in caplog.records] == ["two of them look alike"]


def test_tasks_that_need_all_the_memory_run_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "total_memory", lambda: 10e9)
    with opened(LocalProcesses(2)) as running:
        for number in range(2):
            running.submit(Task(str(number), small_tasks.span, (0.1,), memory=int(6e9)))
        first, second = sorted(done.value() for done in running.finished())
    assert first[1] <= second[0]


def test_a_task_that_is_larger_than_the_machine_is_tried_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "total_memory", lambda: 1e9)
    with opened(LocalProcesses(1)) as running:
        assert in_order(running, [Task("large", small_tasks.square, (4,), memory=int(5e9))], "", silent) == [16]


def test_at_the_end_busy_processes_clear_away_and_are_gone(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), opened(LocalProcesses(2)) as running:
        for number in range(2):
            running.submit(Task(str(number), small_tasks.linger, (tmp_path,)))
        assert wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
        processes = [int(mark.name) for mark in tmp_path.iterdir()]
        raise ZeroDivisionError
    assert not any(is_running(process) for process in processes)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=lambda number: signal.Signals(number).name)
def test_processes_end_with_their_caller(number: signal.Signals, tmp_path: Path) -> None:
    script = (
        "import sys\nfrom pathlib import Path\n"
        "from ptq4vit_onnx.tasks.start import LocalProcesses, opened\nfrom ptq4vit_onnx.tasks.task import Task\n"
        "from tests.tasks.small_tasks import linger\n"
        "if __name__ == '__main__':\n"
        "    with opened(LocalProcesses(2)) as tasks:\n"
        "        for name in 'ab': tasks.submit(Task(name, linger, (Path(sys.argv[1]),)))\n"
        "        list(tasks.finished())\n"
    )
    program = tmp_path / "program.py"
    program.write_text(script)
    marks = tmp_path / "marks"
    marks.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    caller = subprocess.Popen(
        [sys.executable, str(program), str(marks)], env=environment, stderr=subprocess.PIPE, start_new_session=True
    )
    assert wait_until(lambda: len(list(marks.iterdir())) == 2)
    processes = [int(mark.name) for mark in marks.iterdir()]
    if number == signal.SIGKILL:
        caller.kill()
    else:
        os.killpg(caller.pid, number)  # as a terminal does: to the caller and to its processes
    said = caller.communicate()[1].decode()
    assert wait_until(lambda: not any(is_running(process) for process in processes))
    assert list(marks.iterdir()) == [], "they clear away"
    assert said.count("Traceback") == (number == signal.SIGINT), "a worker says nothing"
