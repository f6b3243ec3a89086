"""What parity found: its limits, its checks, and the result as JSON and as a JUnit test suite."""

from __future__ import annotations

import re
import sys
from dataclasses import asdict, dataclass
from typing import Any, Literal
from xml.etree import ElementTree

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.output_kinds.kinds import OutputKind
from ptq4vit_onnx.runtime.engines import EngineName

Status = Literal["passed", "failed", "skipped"]
_NOT_IN_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Limits:
    """min_agreement: a share, 0..1, of equal predictions, or of images with the same nearest neighbour. min_cosine,
    min_worst_cosine: mean and smallest, 0..1. max_drop: points of top-1 or of k-NN accuracy. max_kl: nats.

    None: the default of the model's output kind. Each kind has limits of its own, and refuses the others.
    """

    min_agreement: float | None = None
    max_drop: float | None = None
    max_kl: float | None = None
    min_cosine: float | None = None
    min_worst_cosine: float | None = None

    def __post_init__(self) -> None:
        for name, limit in asdict(self).items():
            least = name.startswith("min_")
            if limit is None or (
                isinstance(limit, (int, float)) and 0 <= limit <= (1 if least else sys.float_info.max)
            ):
                continue
            expected = "a share from 0 to 1, as 0.99" if least else "a number of at least 0, or None for no limit"
            raise UserError(f"{name} is {limit!r}; expected {expected}")

    def of(self, kind: OutputKind) -> dict[str, float | None]:
        """By name, for a model of this kind; refuses those of other kinds."""
        given = {name: limit for name, limit in asdict(self).items() if limit is not None}
        odd = next((name for name in given if name not in kind.limits), None)
        if odd is not None:
            known = ", ".join(map(option_of, kind.limits))
            raise UserError(f"{option_of(odd)} does not fit a model that returns {kind.plural}; its limits are {known}")
        return {**kind.limits, **given}


def option_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"


@dataclass(frozen=True)
class Check:
    """One line of the verdict.

    Attributes:
        name: Of the check, as "kernels" or "agreement".
        status: "passed", "failed" or "skipped".
        sentence: What was found.
        site: Where it fails first, a site or a node outside of all, if that is known.
        value: What was measured, where that is a number.
        limit: What the value was held against.
        details: Everything that is wrong, a sentence each, where `sentence` names only the first.
    """

    name: str
    status: Status
    sentence: str
    site: str | None = None
    value: float | None = None
    limit: float | None = None
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class ParityResult:
    """Every check of a quantised model, and whether all passed.

    Attributes:
        model: The quantised file.
        reference: The float file.
        images: How many were measured on.
        checks: All checks, in order.
        first_divergent: The first site or node that is wrong, and how, if one was found.
        skipped: How many images could not be read; they are not among `images`.
        measured_on: A sentence on the images where they are built-in photos, else None.
        kind: Of the model's outputs.
        engine: That computed the outputs of the model; those of the reference are ONNX Runtime's.
        not_checked: What no check could tell for want of a plan.
        passed: No check failed; one that was skipped is no failure.
    """

    model: str
    reference: str
    images: int
    checks: tuple[Check, ...]
    first_divergent: str | None = None
    skipped: int = 0
    measured_on: str | None = None
    kind: str = "logits"
    engine: EngineName = "onnxruntime"
    not_checked: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return all(check.status != "failed" for check in self.checks)

    def to_data(self) -> dict[str, Any]:
        return {"passed": self.passed, **asdict(self)}

    def to_junit(self) -> str:
        """The checks as a JUnit test suite."""
        statuses = [check.status for check in self.checks]
        suite = ElementTree.Element(
            "testsuite", name="ptq4vit-onnx parity", tests=str(len(statuses)), errors="0",
            failures=str(statuses.count("failed")), skipped=str(statuses.count("skipped")),
        )  # fmt: skip
        said = {"measured_on": self.measured_on, "not_checked": "; ".join(self.not_checked)}
        properties = {name: value for name, value in said.items() if value}
        if properties:
            group = ElementTree.SubElement(suite, "properties")
            for name, value in properties.items():
                ElementTree.SubElement(group, "property", name=name, value=value)
        for check in self.checks:
            case = ElementTree.SubElement(suite, "testcase", classname=_in_xml(self.model), name=check.name)
            if check.status == "failed":
                failure = ElementTree.SubElement(case, "failure", message=_in_xml(check.sentence))
                where = check.site or self.first_divergent
                said_first = f"first divergent site: {where}" if where else "no divergent site was found"
                failure.text = _in_xml("\n".join([said_first, *check.details]))
            elif check.status == "skipped":
                ElementTree.SubElement(case, "skipped", message=_in_xml(check.sentence))
            else:
                ElementTree.SubElement(case, "system-out").text = _in_xml(check.sentence)
        ElementTree.indent(suite)
        text: bytes = ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)
        return text.decode() + "\n"


def _in_xml(text: str) -> str:
    """`text` with what XML 1.0 forbids escaped; a path may hold any of it."""
    return _NOT_IN_XML.sub(lambda found: f"\\x{ord(found.group()):02x}", text)
