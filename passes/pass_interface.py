"""The shape of every pass: what it requires, what it does, what it ensures, and that it does it once."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import ClassVar

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.passes.work import Invariant, Violation, Work

_log = logging.getLogger(__name__)


class PassError(UserError):
    """A pass met a graph it cannot apply the plan to. Names the pass, the site and the node."""


class InvariantError(AssertionError):
    """After a pass, something does not hold that it or an earlier one ensures: a mistake in a pass, not in its input.

    Names the pass that ran last, the one that ensures the invariant, the invariant, the site, the node, and the passes
    that ran before.
    """


class Pass(ABC):
    """One rewriting of the graph.

    requires: names of the passes that must have run before. ensures: what holds after this pass; it is checked then and
    after every later pass, until the pass that may end it. `apply` returns how many places it changed; a planned site
    it cannot change raises. A pass runs once on a graph: the second time raises, it never quantises twice.
    """

    requires: ClassVar[tuple[str, ...]] = ()
    ensures: ClassVar[tuple[Invariant, ...]] = ()

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
        self._check(work)
        work.applied.append(self.name)
        _log.debug("%s: %d places", self.name, work.counts[self.name])

    @abstractmethod
    def apply(self, work: Work) -> int:
        """Rewrite `work.graph`; the number of places changed."""

    def refuse(self, site: str, node: str, problem: str) -> PassError:
        """The error to raise: which pass, which site, which node, and what is wrong with it."""
        return PassError(f"{self.name}: site {site}, node {node}: {problem}")

    def _check(self, work: Work) -> None:
        """Whether all holds that this pass and those before it ensure, except for what this pass ends."""
        work.standing = [(by, item) for by, item in work.standing if item.until != self.name]
        known = {id(item) for _, item in work.standing}
        work.standing += [(self.name, item) for item in self.ensures if id(item) not in known]
        for by, item in work.standing:
            for violation in item.violations(work):
                raise InvariantError(self._broken(by, item, violation, work.applied))

    def _broken(self, by: str, broken: Invariant, place: Violation, before: list[str]) -> str:
        by = "it" if by == self.name else by
        site = f"site {place.site}, " if place.site else ""
        return (
            f"after {self.name} it does not hold that {broken.claim}, which {by} ensures: "
            f"{site}node {place.node}: {place.found}; passes before it: {', '.join(before) or 'none'}"
        )
