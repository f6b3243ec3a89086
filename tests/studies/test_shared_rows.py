"""`reproduce` on several workers: the CSV of one process, whatever the order, and what is left when one fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.images import stream
from ptq4vit_onnx.model_loading.load import load as load_model_of
from ptq4vit_onnx.progress import silent
from ptq4vit_onnx.studies import reproduce, shared_rows
from ptq4vit_onnx.studies.paper_tables import TableRow, rows_of
from ptq4vit_onnx.studies.reproduce import Request
from ptq4vit_onnx.studies.table_files import COLUMNS, add_row, read_rows
from ptq4vit_onnx.tasks.one_by_one import OneByOne
from ptq4vit_onnx.tasks.task import Finished


class LastFirst(OneByOne):
    """Ends the task that was handed over last, first. stops: after so many, as if the driver were interrupted."""

    def __init__(self, stops: int | None = None) -> None:
        super().__init__()
        self.stops, self.ended = stops, []  # type: ignore[var-annotated]

    def finished(self) -> Iterator[Finished]:
        while self._waiting:
            if len(self.ended) == self.stops:
                raise KeyboardInterrupt
            self._waiting.rotate(1)
            task = self._waiting[0]
            done = next(super().finished())
            self.ended.append(task.name)
            yield done


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows of a model, each searched in a second; five images at once, so 24 make five shards."""

    def rows(*arguments: Any) -> list[TableRow]:
        made = rows_of(*arguments)
        return [replace(row, options=replace(row.options, candidates=3, rounds=1)) for row in made if "6" in row.bits]

    monkeypatch.setattr(reproduce, "rows_of", rows)
    monkeypatch.setattr(stream, "AT_ONCE", 5)


@pytest.fixture
def request_in(digit_files: Path, tmp_path: Path, quick: None) -> Callable[..., Request]:
    """name of a folder -> a request that writes there."""

    def make(name: str, *models: str) -> Request:
        given = models or ("vit_digits",)
        return Request("table1", digit_files, given, images=(4,), output=tmp_path / name)

    return make


def test_the_csv_has_the_bytes_of_one_process_whatever_ends_first(request_in: Callable[..., Request]) -> None:
    alone, shared = request_in("alone"), request_in("shared")
    reproduce.reproduce(alone)
    found = reproduce.reproduce(shared, tasks=LastFirst())
    assert shared.csv.read_bytes() == alone.csv.read_bytes()
    assert [row["method"] for row in found.rows] == ["Base PTQ", "PTQ4ViT"]
    assert sorted(path.name for path in shared.output.iterdir()) == ["table1.csv", "table1.md", "table1_minutes.csv"]
    assert not list(shared.output.parent.glob(".*")), "what was kept to go on from is gone"


@pytest.mark.parametrize("stops", [1, 2, 4])
def test_a_driver_that_was_stopped_does_only_what_is_missing(
    request_in: Callable[..., Request], stops: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, stopped = request_in("whole"), request_in("stopped")
    first, every, second = LastFirst(stops), LastFirst(), LastFirst()
    reproduce.reproduce(whole, tasks=every)
    with pytest.raises(KeyboardInterrupt):
        reproduce.reproduce(stopped, tasks=first)
    assert not stopped.csv.exists()
    reproduce.reproduce(stopped, tasks=second)
    assert stopped.csv.read_bytes() == whole.csv.read_bytes()
    assert sorted(first.ended + second.ended) == sorted(every.ended) and len(every.ended) == 2 + 5


def test_a_model_that_fails_is_said_once_and_costs_nobody_else(
    request_in: Callable[..., Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = load_model_of

    def load(spec: Any, checkpoint: Path | None) -> Any:
        if spec.name == "deit_t":
            raise UserError("no weights for deit_t: the hub is silent")
        return real(spec, checkpoint)

    monkeypatch.setattr(shared_rows, "load", load)
    alone, shared = request_in("alone"), request_in("shared", "deit_t", "vit_digits")
    reproduce.reproduce(alone)
    found = reproduce.reproduce(shared, tasks=LastFirst())
    assert found.skipped == (
        "skipped 2 rows of deit_t: no weights for deit_t: the hub is silent (here: --checkpoint deit_t=FILE)",
    )
    assert shared.csv.read_bytes() == alone.csv.read_bytes()


def test_a_shard_that_fails_leaves_no_row_of_its_model(
    request_in: Callable[..., Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(_request: Any, _sources: Any, _rows: Any, _plans: Any, part: tuple[int, ...]) -> Any:
        raise UserError("its disk is gone")

    monkeypatch.setattr(shared_rows, "measure_shard", measure)
    request = request_in("failing")
    found = reproduce.reproduce(request, tasks=OneByOne())
    assert found.skipped == ("skipped 2 rows of vit_digits: its disk is gone",)
    assert not request.csv.exists()


def test_rows_lie_in_the_order_of_the_table_and_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "table1.csv"
    order = ["a", "b", "c"]
    for key in ("z", "c", "a", "b"):
        add_row(path, {**dict.fromkeys(COLUMNS, ""), "key": key, "minutes": f"{ord(key)}"}, order)
    assert [row["key"] for row in read_rows(path)] == ["z", "a", "b", "c"]
    assert [row["minutes"] for row in read_rows(path)] == [str(ord(key)) for key in "zabc"]
    assert "minutes" not in path.read_text().splitlines()[0].split(",")


def test_bars_count_all_tasks(request_in: Callable[..., Request]) -> None:
    seen: list[tuple[str, int]] = []

    def watched(items: Any, title: str) -> Any:
        seen.append((title, len(items)))
        return silent(items, title)

    reproduce.reproduce(request_in("watched"), watched, OneByOne())
    assert seen == [("table1", 2 + 5)]
