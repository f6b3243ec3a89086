"""What a row of the paper's tables is measured from, and how: one model, calibrated and run over images."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from ptq4vit_onnx import __version__
from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.files.provenance import Identity, data_identity, file_identity
from ptq4vit_onnx.files.scratch import scratch_folder
from ptq4vit_onnx.images.listing import list_folder
from ptq4vit_onnx.images.loading import Array, ImageSet, count_images, has_labels, load_images, require_source
from ptq4vit_onnx.images.stream import ImageSource, ImageStream, Where, open_images
from ptq4vit_onnx.model_loading.load import LoadedModel
from ptq4vit_onnx.models.specs import ModelSpec
from ptq4vit_onnx.progress import Progress, silent, ticks
from ptq4vit_onnx.studies.paper_tables import TableName, TableRow
from ptq4vit_onnx.studies.table_files import Tally

if TYPE_CHECKING:
    from ptq4vit_onnx.plan.scale_plan import SitePlan

Engine = Literal["simulator", "onnxruntime"]
Predict = Callable[[Array], Array]  # images [n, C, H, W] -> logits [n, classes]
# Which validation images a limit picks must not depend on the calibration's seed, nor repeat its picks where both draw
# from the same folder: this is the first number that is no seed.
VALIDATION_SEED = 2**32
_VALIDATION, _CALIBRATION = ("val", "validation"), ("train", "calibration")


@dataclass(frozen=True)
class Request:
    """What is asked for. models, images: empty for the table's own. data: images to measure on, or a folder that has
    them in val/ (and training images in train/). calibration None: train/ of `data`, else `data` itself.
    checkpoints: by model; the others' weights come from timm's hub.
    """

    table: TableName
    data: Path
    models: tuple[str, ...] = ()
    checkpoints: Mapping[str, Path] = field(default_factory=dict)
    calibration: Path | None = None
    images: tuple[int, ...] = ()
    seed: int = 0
    limit: int | None = None
    where: str | None = None
    engine: Engine = "simulator"
    output: Path = Path("reproduce")

    @property
    def csv(self) -> Path:
        return self.output / f"{self.table}.csv"


@dataclass(frozen=True)
class Sources:
    """Where images come from, found out before anything is computed. identities: of both, to know them again."""

    validation: ImageSource
    calibration: Path
    calibration_where: Where | None
    identities: tuple[Identity, Identity]

    @classmethod
    def of(cls, request: Request) -> Sources:
        require_source(request.data)
        validation = _subfolder(request.data, _VALIDATION) or request.data
        calibration = request.calibration or _subfolder(request.data, _CALIBRATION) or validation
        require_source(calibration)
        where = None if request.where is None else Where.parse(request.where)
        source = ImageSource(validation, request.limit, where, VALIDATION_SEED, skip_unreadable=True)
        if not has_labels(validation, where):
            raise no_labels(validation)
        drawn_alike = request.calibration is None and calibration == validation
        identities = data_identity(validation), data_identity(calibration)
        return cls(source, calibration, where if drawn_alike else None, identities)

    @property
    def images(self) -> int:
        """How many images there are to measure on, readable or not."""
        data = self.validation.data
        assert data is not None
        return len(list_folder(data, self.validation.where).files) if data.is_dir() else count_images(data)

    def at(self, place: Callable[[Path], Path]) -> Sources:
        """The same where a machine has them."""
        data = self.validation.data
        assert data is not None
        return replace(self, validation=replace(self.validation, data=place(data)), calibration=place(self.calibration))


class Bench:
    """One loaded model, and its float logits once they are known."""

    def __init__(
        self, request: Request, sources: Sources, spec: ModelSpec, model: LoadedModel, progress: Progress
    ) -> None:
        self.request, self.sources, self.spec, self.model, self.progress = request, sources, spec, model, progress
        self.skipped: Mapping[str, str] = {}  # images that could not be read when they were last opened
        self.reference: list[Array] = []  # one array per chunk: 4 KB an image, where the image itself has 600

    def measure(self, row: TableRow) -> dict[str, str]:
        plans, minutes = self.calibrate(row)
        tally = Tally()
        with self._engine(row, plans) as predict:
            for number, chunk in enumerate(self._chunks(row)):
                tally.add(predict(chunk.images), self._float(number, chunk.images), np.asarray(chunk.labels))
        return cells(self.request, self.sources, self.spec, row, tally, minutes)

    def calibrate(self, row: TableRow) -> tuple[dict[str, SitePlan], float]:
        """A plan for every site, and the minutes that it took."""
        started = time.perf_counter()
        plans = self._calibrate(row, self._calibration(row))
        return plans, (time.perf_counter() - started) / 60

    def tallies(self, rows: Sequence[TableRow], plans: Sequence[Mapping[str, SitePlan]]) -> list[list[Tally]]:
        """Of each row, a tally for each chunk of the images; the float model runs once for all rows."""
        found: list[list[Tally]] = [[] for _ in rows]
        with ExitStack() as stack:
            engines = [stack.enter_context(self._engine(*each)) for each in zip(rows, plans, strict=True)]
            for number, chunk in enumerate(self._open(silent).chunks):
                for tallies, predict in zip(found, engines, strict=True):
                    tallies.append(Tally())
                    tallies[-1].add(predict(chunk.images), self._float(number, chunk.images), np.asarray(chunk.labels))
        return found

    def _calibration(self, row: TableRow) -> ImageSet:
        """The images that the row searches on; behind them more to round on, if it rounds weights together."""
        from ptq4vit_onnx.planning.sites import rounding_images

        count, sources = row.options.images, self.sources
        return load_images(
            sources.calibration, self.model.preprocessing, max(count, rounding_images(self.model, row.options)),
            row.options.seed, count, sources.calibration_where,
        )  # fmt: skip

    def _calibrate(self, row: TableRow, images: ImageSet) -> dict[str, SitePlan]:
        from ptq4vit_onnx.network.discovery import discover
        from ptq4vit_onnx.planning.sites import plan_sites

        pixels, options = images.images, row.options
        order = [site.name for site in discover(self.model.module, pixels[:1])]
        tick = ticks(self.progress, len(order), f"{row}: calibrating")
        found = plan_sites(
            self.model, pixels[: options.images], options, rounded_on=pixels, on_site=lambda _recording, _plan: tick(1)
        )
        tick(1)  # ends the bar
        return {name: found[name] for name in order}

    def require_labels(self) -> None:
        source, model = self.sources.validation, self.model
        labels = self._open(silent).labels
        if labels is None:
            raise no_labels(source.data)
        if not ((labels >= 0) & (labels < model.classes)).all():
            raise UserError(
                f"{source.data} has labels beyond 0..{model.classes - 1}, the classes of {model.name}; "
                "give images of this model's classes"
            )

    def _chunks(self, row: TableRow) -> Iterator[ImageSet]:
        yield from self._open(lambda items, title: self.progress(items, f"{row}: {title}")).chunks

    def _open(self, progress: Progress) -> ImageStream:
        stream = open_images(self.sources.validation, self.model.name, self.model.preprocessing, progress)
        self.skipped = stream.skipped
        return stream

    def _float(self, number: int, images: Array) -> Array:
        from ptq4vit_onnx.simulation.fake import simulate

        if number == len(self.reference):
            self.reference.append(simulate(self.model.module, None, images))
        return self.reference[number]

    def _engine(self, row: TableRow, plans: Mapping[str, SitePlan]) -> AbstractContextManager[Predict]:
        if self.request.engine == "simulator":
            return simulated(self.model, plans)
        return in_integers(self.model, row, plans, self._calibration(row))


def cells(
    request: Request, sources: Sources, spec: ModelSpec, row: TableRow, tally: Tally, minutes: float
) -> dict[str, str]:
    """The row as the CSV and the Markdown hold it."""
    assert tally.images, "a stream without images is refused where it is opened"
    paper = {"paper_top1": row.paper.top1, "paper_drop": row.paper.drop, "paper_float_top1": spec.top1}
    return {
        "model": row.model, "method": row.method, "bits": row.bits, "images": str(row.options.images),
        **tally.cells(), **{name: _cell(value, ".2f") for name, value in paper.items()},
        "minutes": f"{minutes:.2f}", "paper_minutes": _cell(row.paper.minutes, "g"),
        "engine": request.engine, "seed": str(row.options.seed), "key": key_of(request, sources, row),
    }  # fmt: skip


@contextmanager
def simulated(model: LoadedModel, plans: Mapping[str, SitePlan], batch: int = 16) -> Iterator[Predict]:
    """Fake-quantised torch, as the paper's numbers are, but with the weights that ship (see saturation_safe_weights).

    Weights are quantised once for all images.
    """
    from ptq4vit_onnx.simulation.fake import predictor

    yield predictor(model.module, plans, batch)


@contextmanager
def in_integers(
    model: LoadedModel, row: TableRow, plans: Mapping[str, SitePlan], images: ImageSet
) -> Iterator[Predict]:
    """The quantised file in ONNX Runtime; every product has to run on an exact integer kernel."""
    from ptq4vit_onnx.files.provenance import versions
    from ptq4vit_onnx.float_export.exporter import export_float
    from ptq4vit_onnx.network.discovery import discover
    from ptq4vit_onnx.plan.scale_plan import ScalePlan
    from ptq4vit_onnx.proof.kernels import audit
    from ptq4vit_onnx.proof.prove import quantize_model
    from ptq4vit_onnx.runtime.session import run, session

    sites = discover(model.module, images.images[:1])
    plan = ScalePlan(
        model.name, model.fingerprint, images.fingerprint, row.options.to_data(), versions(), dict(plans)
    )  # fmt: skip
    with scratch_folder() as folder:
        path, _ = quantize_model(export_float(model, sites), plan, folder / "model.onnx")
        kernels = audit(path, plan)
        kernels.require_integer()
        kernels.require_exact()
        runner = session(path, threads=0)
        yield lambda images: run(runner, images)


def key_of(request: Request, sources: Sources, row: TableRow) -> str:
    """Names everything that a row's result depends on; equal keys are the same measurement."""
    where = sources.validation.where
    identity = {
        "version": __version__, "table": request.table, "model": row.model, "method": row.method,
        "options": row.options.to_data(), "weights": file_identity(request.checkpoints.get(row.model)),
        "validation": sources.identities[0], "limit": request.limit,
        "where": None if where is None else [where.column, where.value],
        "calibration": sources.identities[1], "engine": request.engine,
    }  # fmt: skip
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def _subfolder(data: Path, names: Sequence[str]) -> Path | None:
    return next((data / name for name in names if (data / name).is_dir()), None)


def no_labels(data: Path | None) -> UserError:
    return UserError(f"{data} has no labels to count hits by; give an ImageFolder tree or a folder with labels.csv")


def _cell(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
