"""Tasks on a real Ray cluster of this machine; skipped where Ray is absent. One cluster serves all tests."""

from __future__ import annotations

import importlib.util
import secrets
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.progress import silent
from ptq4vit_onnx.tasks.start import RayCluster, opened, workers_from
from ptq4vit_onnx.tasks.task import DefectError, Task, Tasks, in_order
from tests.tasks import small_tasks

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason='Ray is not installed: pip install "ptq4vit-onnx[ray]"'
)


@pytest.fixture(scope="module")
def tasks() -> Iterator[Tasks]:
    before = signal.getsignal(signal.SIGTERM)
    with opened(RayCluster("local", 2)) as running:
        assert signal.getsignal(signal.SIGTERM) is before, "how this program ends is its own affair"
        yield running


@needs_ray
def test_results_are_those_of_the_calls_in_the_order_of_the_tasks(tasks: Tasks) -> None:
    asked = [Task(str(number), small_tasks.square, (number,)) for number in range(12)]
    assert in_order(tasks, asked, "squares", silent) == [number * number for number in range(12)]
    assert tasks.slots == 2


@needs_ray
def test_a_worker_has_as_many_threads_as_its_task_has_cpus(tasks: Tasks) -> None:
    wanted = [Task("one", small_tasks.threads), Task("two", small_tasks.threads, cpus=2)]
    assert in_order(tasks, wanted, "", silent) == [(1, 1), (2, 2)]


@needs_ray
def test_a_task_whose_worker_is_killed_is_tried_again(
    tasks: Tasks, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tasks.submit(Task("dies twice", small_tasks.die_the_first, (2, tmp_path)))
    (done,) = tasks.finished()
    assert (done.value(), done.attempts) == (3, 3)
    assert capfd.readouterr().out == "", "standard output is for results"


@needs_ray
def test_a_task_that_kills_every_worker_is_given_up(tasks: Tasks, tmp_path: Path) -> None:
    tasks.submit(Task("poison", small_tasks.die_the_first, (99, tmp_path)))
    (done,) = tasks.finished()
    with pytest.raises(UserError, match="its process died 3 times"):
        done.value()


@needs_ray
@pytest.mark.parametrize(("kind", "error"), [("user", UserError), ("defect", DefectError)])
def test_an_error_is_what_it_would_be_here_and_stops_nobody(tasks: Tasks, kind: str, error: type[Exception]) -> None:
    tasks.submit(Task("fails", small_tasks.fail, (kind,)))
    tasks.submit(Task("works", small_tasks.square, (2,)))
    found = {done.task.name: done for done in tasks.finished()}
    assert found["works"].value() == 4 and found["fails"].attempts == 1
    with pytest.raises(error):
        found["fails"].value()


@needs_ray
def test_a_task_that_no_machine_is_large_enough_for_is_refused_and_does_not_wait_for_ever(tasks: Tasks) -> None:
    tasks.submit(Task("huge", small_tasks.square, (2,), memory=10**18))
    (done,) = tasks.finished()
    with pytest.raises(UserError, match=r"needs 1000000000\.0 GB, the largest machine of the cluster has"):
        done.value()


@needs_ray
def test_a_file_that_the_workers_cannot_see_is_sent_to_them(
    tasks: Tasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the caller says of its content is not what a worker finds, as on another machine."""
    path = tmp_path / "weights.bin"
    path.write_text("of the caller")
    content = secrets.token_hex(32)
    monkeypatch.setattr("ptq4vit_onnx.tasks.worker.content_of", lambda _: content)
    asked = [Task(str(number), small_tasks.read, (path,), reads=(path,)) for number in range(3)]
    found = in_order(tasks, asked, "", silent)
    ((place, text),) = set(found)
    assert text == "of the caller" and Path(place).name == "weights.bin" and Path(place) != path
    shutil.rmtree(Path(place).parent)


@needs_ray
@pytest.mark.parametrize("address", ["127.0.0.1:9", "ray://127.0.0.1:9"])
def test_a_cluster_that_is_not_there_is_one_line(
    address: str, run_python: Callable[..., object], tmp_path: Path
) -> None:
    run_python(
        "import sys, os\n"
        "os.environ.update(RAY_TMPDIR=sys.argv[1], RAY_CLIENT_RECONNECT_GRACE_PERIOD='1')\n"
        "from ptq4vit_onnx.errors import UserError\n"
        "from ptq4vit_onnx.tasks.start import RayCluster, opened\n"
        "try:\n"
        "    with opened(RayCluster(sys.argv[2])): pass\n"
        "except UserError as error:\n"
        "    assert f'cannot reach a Ray cluster at {sys.argv[2]}' in str(error), error\n"
        "    assert len(str(error).splitlines()) == 1\n"
        "else: sys.exit('no error')\n",
        tmp_path,
        address,
    )


def test_without_ray_the_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r'--ray needs Ray.*pip install "ptq4vit-onnx\[ray\]"'), opened(RayCluster()):
        pass


@pytest.mark.parametrize("address", ["model.onnx", "ray://", "local ", "127.0.0.1", ""])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(UserError, match="no Ray address"):
        workers_from(address, None)


@pytest.mark.parametrize("command", ["export", "eval", "reproduce"])
def test_neither_help_nor_the_package_loads_ray(run_python: Callable[..., object], command: str) -> None:
    run_python(
        "import sys, ptq4vit_onnx.api, ptq4vit_onnx.cli.main as cli\n"
        "try: cli.main([sys.argv[1], '--help'])\n"
        "except SystemExit: pass\n"
        "assert 'ray' not in sys.modules\n",
        command,
    )
