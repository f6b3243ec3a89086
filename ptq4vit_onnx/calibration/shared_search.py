"""The search of a calibration on several workers: each site is a task.

Sites do not depend on each other once they are recorded. The recording itself, one block after the other, stays in this
process; it is the serial part. A recording is sent with the layout its tensors have in memory, so that a worker finds
the same scales to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from ptq4vit_onnx.network.recording import Recording
from ptq4vit_onnx.plan.options import Options
from ptq4vit_onnx.plan.quantizers import Pixels
from ptq4vit_onnx.plan.sites import Site
from ptq4vit_onnx.tasks.task import Task, Tasks
from ptq4vit_onnx.threads.side_by_side import on_one_thread

Array = np.ndarray[Any, Any]
Plan = TypeVar("Plan")  # what is found of a site: a plan, or one for each width
Search = Callable[[Recording, Options, Pixels | None], Plan]
Keep = Callable[[Recording, Plan], None]
AHEAD, MOST = 2, 16  # recordings in memory: so many more than workers, and at most; one may have 240 MB


@dataclass(frozen=True)
class Packed:
    """A recording as it travels: arrays, and how their axes lie in memory."""

    site: Site
    sides: tuple[tuple[Array, tuple[int, ...]], ...]
    share: float

    @classmethod
    def of(cls, recording: Recording) -> Packed:
        sides = (recording.lhs, recording.rhs, recording.grad)
        return cls(recording.site, tuple(_packed(side) for side in sides), recording.share)

    def recording(self) -> Recording:
        lhs, rhs, grad = (_unpacked(*side) for side in self.sides)
        return Recording(self.site, lhs, rhs, grad, self.share)


def _packed(x: Tensor) -> tuple[Array, tuple[int, ...]]:
    """The axes from the outermost in memory to the innermost."""
    strides = x.stride()
    order = tuple(sorted(range(x.dim()), key=lambda axis: (-strides[axis], axis)))
    return x.permute(order).contiguous().numpy(), order


def _unpacked(array: Array, order: tuple[int, ...]) -> Tensor:
    writable = array if array.flags.writeable else array.copy()  # of an object store, which torch must not write to
    return torch.from_numpy(writable).permute(tuple(int(axis) for axis in np.argsort(order)))


def search_shared(
    tasks: Tasks, search: Search[Plan], tape: Iterable[Recording], options: Options, known: Mapping[str, Plan],
    on_site: Keep[Plan], pixels: Pixels | None,
) -> dict[str, Plan]:  # fmt: skip
    """A plan for every site. search: finds that of one, in a worker. on_site: called as plans come, in any order."""
    pending = _Pending(tasks, on_site)
    most = min(tasks.slots + AHEAD, MOST)
    with on_one_thread():
        for recording in tape:
            name = recording.site.name
            if name in known:
                pending.keep(recording, known[name])
                continue
            while len(pending.held) >= most:
                pending.next()
            pending.submit(Task(name, found_by, (search, Packed.of(recording), options, pixels)), recording)
            del recording
        while pending.held:
            pending.next()
    return pending.plans


def found_by(search: Search[Plan], packed: Packed, options: Options, pixels: Pixels | None) -> Plan:
    """In a worker."""
    with on_one_thread():
        return search(packed.recording(), options, pixels)


class _Pending(Generic[Plan]):
    """Recordings whose plans are being searched."""

    def __init__(self, tasks: Tasks, on_site: Keep[Plan]) -> None:
        self.tasks, self.on_site = tasks, on_site
        self.held: dict[str, Recording] = {}
        self.plans: dict[str, Plan] = {}
        self.results = tasks.finished()

    def submit(self, task: Task, recording: Recording) -> None:
        self.held[recording.site.name] = recording
        self.tasks.submit(task)

    def next(self) -> None:
        """Wait for the next plan."""
        done = next(self.results, None)
        if done is None:  # nothing was left when it was asked last
            self.results = self.tasks.finished()
            done = next(self.results)
        self.keep(self.held.pop(done.task.name), done.value())

    def keep(self, recording: Recording, plan: Plan) -> None:
        self.plans[recording.site.name] = plan
        self.on_site(recording, plan)
