"""Rows of the paper's tables on several workers: a task calibrates a row, others measure a model's rows on a shard.

A shard is measured for all rows of a model at once, so that the float model runs once for them. A model's shards begin
when its last calibration has ended. What tasks have found is kept on disk until the last row is in the table.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.files.leftovers import journal_of
from ptq4vit_onnx.images.preprocessing import Preprocessing
from ptq4vit_onnx.images.shards import Measured, Part, Shards, cut, shards
from ptq4vit_onnx.images.stream import at_once, unreadable_of
from ptq4vit_onnx.model_loading.load import load, resolve
from ptq4vit_onnx.plan.plan_json import parse_named_site, plain
from ptq4vit_onnx.progress import Progress, silent
from ptq4vit_onnx.studies.exports import LARGE, gigabytes_of
from ptq4vit_onnx.studies.kept_results import KeptResults
from ptq4vit_onnx.studies.measuring import Bench, Request, Sources, cells, key_of
from ptq4vit_onnx.studies.paper_tables import TableRow
from ptq4vit_onnx.studies.table_files import Tally, add_row
from ptq4vit_onnx.tasks.task import Failure, Finished, Task, Tasks, Watched
from ptq4vit_onnx.tasks.travel import here

Plans = list[Any]  # of a row, as JSON


def skipped_line(count: int, model: str, reason: object) -> str:
    return f"skipped {count} rows of {model}: {reason}"


def without_weights(request: Request, model: str, error: UserError) -> str:
    return f"{error}" + ("" if model in request.checkpoints else f" (here: --checkpoint {model}=FILE)")


def measure_shared(
    request: Request, sources: Sources, missing: Sequence[TableRow], order: Sequence[str], tasks: Tasks,
    progress: Progress,
) -> list[str]:  # fmt: skip
    """Rows go to the CSV in the table's order, a model's as soon as they are known. Returns a line for each failure;
    a defect is raised, once the others have ended."""
    if not missing:
        return []
    kept = KeptResults(journal_of(request.csv.absolute()))
    table = _Table(request, sources, order, tasks, kept)
    for name in dict.fromkeys(row.model for row in missing):
        table.begin(name, [row for row in missing if row.model == name])
    for done in Watched(tasks, table.expected(missing), str(request.table), progress):
        table.heard(done)
    if not table.failures:
        kept.clear()
    for _, _, failure in table.failures:
        if failure.kind == "defect":
            raise failure.error()
    return table.lines()


class _Model:
    """The rows of a model on their way. plans: by row, None until they are known."""

    def __init__(self, rows: list[TableRow]) -> None:
        self.rows = rows
        self.waiting = len(rows)
        self.calibrated: dict[int, dict[str, Any]] = {}
        self.failed: dict[int, Failure] = {}
        self.shards: Shards[list[list[Tally]]] | None = None
        self.parts: list[Part] = []
        self.found: dict[Part, Measured[list[list[Tally]]]] = {}

    @property
    def good(self) -> list[int]:
        return sorted(self.calibrated)


class _Table:
    def __init__(
        self, request: Request, sources: Sources, order: Sequence[str], tasks: Tasks, kept: KeptResults
    ) -> None:
        self.request, self.sources, self.order, self.tasks, self.kept = request, sources, order, tasks, kept
        self.models: dict[str, _Model] = {}
        self.asked: dict[int, tuple[str, int | Part]] = {}  # by the id of a task: which row or shard of which model
        self.submitted: list[Task] = []
        self.failures: list[tuple[str, int, Failure]] = []

    def begin(self, name: str, rows: list[TableRow]) -> None:
        self.models[name] = _Model(rows)
        for number, row in enumerate(rows):
            key = self._row_key(row)
            if key in self.kept.known:
                self._calibrated(name, number, self.kept.known[key])
            else:
                arguments = (self.request, self.sources, row)
                self._submit(name, number, _task(f"{row}: calibrating", calibrate_row, arguments, row))

    def expected(self, missing: Sequence[TableRow]) -> int:
        """About how many tasks end: all shards are as many as those of the models' usual size."""
        names = dict.fromkeys(row.model for row in missing)
        images = self.request.limit or self.sources.images
        shards_each = [len(cut(range(images), at_once((3, size, size))))
                       for size in (resolve(name).size for name in names)]  # fmt: skip
        return len(missing) + sum(shards_each)

    def heard(self, done: Finished) -> None:
        name, what = self.asked.pop(id(done.task))
        if done.failure is not None:
            self._failed(name, what, done.failure)
        elif isinstance(what, int):
            self.kept.add(self._row_key(self.models[name].rows[what]), done.result)
            self._calibrated(name, what, done.result)
        else:
            self.kept.add(self._part_key(name, what), done.result)
            self._measured(name, what, done.result)

    def lines(self) -> list[str]:
        """A line for each model and reason."""
        counts: dict[tuple[str, str], int] = {}
        for name, rows, failure in self.failures:
            counts[name, failure.line] = counts.get((name, failure.line), 0) + rows
        return [skipped_line(count, name, line) for (name, line), count in counts.items()]

    def _submit(self, name: str, what: int | Part, task: Task) -> None:
        self.asked[id(task)] = name, what
        self.submitted.append(task)  # an id names a task only as long as that is there
        self.tasks.submit(task)

    def _failed(self, name: str, what: int | Part, failure: Failure) -> None:
        model = self.models[name]
        if isinstance(what, int):
            self.failures.append((name, 1, failure))
            model.failed[what] = failure
            self._one_less(name)
        elif model.shards is not None:  # one shard is enough: none of the model's rows can be whole
            self.failures.append((name, len(model.good), failure))
            model.shards = None

    def _calibrated(self, name: str, number: int, result: dict[str, Any]) -> None:
        self.models[name].calibrated[number] = result
        self._one_less(name)

    def _one_less(self, name: str) -> None:
        model = self.models[name]
        model.waiting -= 1
        if model.waiting or not model.good:
            return
        rule = Preprocessing.from_json(model.calibrated[model.good[0]]["preprocessing"])
        model.shards = shards(self.sources.validation, name, rule)
        self._ask(name, next(model.shards))

    def _ask(self, name: str, parts: list[Part]) -> None:
        model = self.models[name]
        model.parts, model.found = parts, {}
        rows, plans = [model.rows[n] for n in model.good], [model.calibrated[n]["plans"] for n in model.good]
        for part in parts:
            key = self._part_key(name, part)
            if key in self.kept.known:
                self._measured(name, part, self.kept.known[key])
                continue
            title = f"{name}: images {part[0]} .. {part[-1]}"
            arguments = (self.request, self.sources, rows, plans, part)
            self._submit(name, part, _task(title, measure_shard, arguments, rows[0]))

    def _measured(self, name: str, part: Part, result: dict[str, Any]) -> None:
        model = self.models[name]
        if model.shards is None:
            return
        tallies = [[Tally(**chunk) for chunk in row] for row in result["tallies"]]
        model.found[part] = tallies, {int(number): reason for number, reason in result["unreadable"]}
        if len(model.found) < len(model.parts):
            return
        try:
            self._ask(name, model.shards.send([model.found[part] for part in model.parts]))
        except StopIteration as end:
            self._write(name, end.value[0])
        except UserError as error:
            self._failed(name, part, Failure("user", str(error)))

    def _write(self, name: str, found: Sequence[list[list[Tally]]]) -> None:
        model, spec = self.models[name], resolve(name)
        for place, number in enumerate(model.good):
            total, row = Tally(), model.rows[number]
            for tally in (chunk for shard in found for chunk in shard[place]):
                total.join(tally)
            minutes = model.calibrated[number]["minutes"]
            add_row(self.request.csv, cells(self.request, self.sources, spec, row, total, minutes), self.order)

    def _row_key(self, row: TableRow) -> str:
        return key_of(self.request, self.sources, row)

    def _part_key(self, name: str, part: Part) -> str:
        model = self.models[name]
        return _hash(*(self._row_key(model.rows[number]) for number in model.good), *map(str, part))


def _task(name: str, function: Any, arguments: tuple[Any, ...], row: TableRow) -> Task:
    request, sources = arguments[0], arguments[1]
    reads = (sources.validation.data, sources.calibration, request.checkpoints.get(row.model))
    gigabytes = gigabytes_of(resolve(row.model), row.options.images)
    present = tuple(dict.fromkeys(path for path in reads if path is not None))
    return Task(name, function, arguments, present, 1 if gigabytes < LARGE else 2, int(gigabytes * 1e9))


def calibrate_row(request: Request, sources: Sources, row: TableRow) -> dict[str, Any]:
    """In a worker: a plan for every site, as JSON, and what the driver has to know of the model."""
    bench = _bench(request, sources, row.model)
    bench.require_labels()  # now, not after the calibration
    plans, minutes = bench.calibrate(row)
    sites = [[name, plain(plan)] for name, plan in plans.items()]
    return {"plans": sites, "minutes": minutes, "preprocessing": bench.model.preprocessing.to_json()}


def measure_shard(
    request: Request, sources: Sources, rows: Sequence[TableRow], plans: Sequence[Plans], part: Part
) -> dict[str, Any]:
    """In a worker: of each row, a tally for each chunk of the shard."""
    validation = replace(sources.validation, only=part)
    bench = _bench(request, replace(sources, validation=validation), rows[0].model)
    parsed = [dict(parse_named_site(json.dumps(site)) for site in row) for row in plans]
    tallies = [[asdict(chunk) for chunk in row] for row in bench.tallies(rows, parsed)]
    return {"tallies": tallies, "unreadable": list(unreadable_of(bench.sources.validation, bench.skipped).items())}


def _bench(request: Request, sources: Sources, name: str) -> Bench:
    """With files where this machine has them."""
    spec, checkpoint = resolve(name), request.checkpoints.get(name)
    try:
        model = load(spec, None if checkpoint is None else here(checkpoint))
    except UserError as error:
        raise UserError(without_weights(request, name, error)) from error
    return Bench(request, sources.at(here), spec, model, silent)


def _hash(*names: str) -> str:
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:32]
