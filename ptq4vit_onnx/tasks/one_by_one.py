"""Tasks in this process, one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from ptq4vit_onnx.tasks.task import Finished, Task
from ptq4vit_onnx.tasks.worker import attempted


class OneByOne:
    """With all threads, and with warnings said as they come: what a caller without workers would do by itself."""

    slots, threads = 1, 0

    def __init__(self) -> None:
        self.history: list[Finished] = []
        self._waiting: deque[Task] = deque()

    def submit(self, task: Task) -> None:
        self._waiting.append(task)

    def finished(self) -> Iterator[Finished]:
        while self._waiting:
            task = self._waiting.popleft()
            result, failure = attempted(task)
            yield Finished(task, result, failure)
