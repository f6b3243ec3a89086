"""The shape of every pass: what it requires, what it does, and that it does it once."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import ClassVar

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.passes.work import Work

_log = logging.getLogger(__name__)


class PassError(UserError):
    """A pass met a graph it cannot apply the plan to. Names the pass, the site and the node."""


class Pass(ABC):
    """One rewriting of the graph.

    requires: names of the passes that must have run before. `apply` returns how many places it changed; a
    planned site it cannot change raises. A pass runs once on a graph: the second time raises, it never
    quantises twice.
    """

    requires: ClassVar[tuple[str, ...]] = ()

    @property
    def name(self) -> str:
        return type(self).__name__

    def __call__(self, work: Work) -> None:
        missing = [name for name in self.requires if name not in work.applied]
        if missing:
            raise PassError(f"{self.name} needs {', '.join(missing)} first; so far ran {work.applied}")
        if self.name in work.applied:
            raise PassError(f"{self.name} has already run on this graph")
        work.counts[self.name] = self.apply(work)
        work.graph.cleanup()  # the next pass asks who reads a tensor: nodes that nobody reads must not answer
        work.applied.append(self.name)
        _log.debug("%s: %d places", self.name, work.counts[self.name])

    @abstractmethod
    def apply(self, work: Work) -> int:
        """Rewrite `work.graph`; the number of places changed."""

    def refuse(self, site: str, node: str, problem: str) -> PassError:
        """The error to raise: which pass, which site, which node, and what is wrong with it."""
        return PassError(f"{self.name}: site {site}, node {node}: {problem}")
