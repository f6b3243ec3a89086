"""Logits of a classifier: agreement of the predictions, divergence of the distributions, top-1 and top-5."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ptq4vit_onnx.output_kinds import metrics
from ptq4vit_onnx.output_kinds.output_kind import (
    AgainstFloat,
    Column,
    Headline,
    Kept,
    OutputKind,
    Outputs,
    Reading,
    Tensor,
    drop_note,
    drop_reading,
    short,
)


@dataclass(frozen=True)
class LogitsAgainstFloat(AgainstFloat):
    """The quantised classifier against the float one.

    Attributes:
        images: How many were measured on.
        agreement: Percent of equal predictions.
        kl: Mean KL divergence from the float model, in nats.
        top1_float: Of the float model, in percent; None without labels.
        top1_quantised: Of the quantised model, in percent; None without labels.
        drop: The loss of top-1; None without labels.
    """

    agreement: float
    kl: float
    top1_float: float | None
    top1_quantised: float | None
    drop: metrics.PairedDrop | None
    kind: ClassVar[str] = "logits"

    @property
    def figures(self) -> dict[str, Any]:
        drop = self.drop
        return {
            "agreement": self.agreement,
            "kl": self.kl,
            "drop": None if drop is None else drop.points,
            "drop_error": None if drop is None else drop.standard_error,
        }

    @property
    def distance(self) -> float:
        return self.kl

    @property
    def summary(self) -> str:
        return f"{self.agreement:.1f} % agreement, KL {self.kl:.2g}"

    @property
    def accuracy(self) -> tuple[str, str] | None:
        if self.top1_float is None:
            return None
        return "top-1", f"{self.top1_quantised:.1f} % (float {self.top1_float:.1f} %)"

    @property
    def headlines(self) -> list[Headline]:
        found = [Headline("Agreement with float", f"{self.agreement:.1f} %", f"KL {short(self.kl)} nats")]
        if self.top1_quantised is None:
            return found
        note = drop_note(self.top1_float, self.drop)
        return [Headline("Top-1", f"{self.top1_quantised:.1f} %", note), *found]

    @property
    def readings(self) -> dict[str, Reading]:
        equal = f"{self.agreement:.2f} % of {self.images} predictions equal the float model's"
        return {
            "min_agreement": Reading(self.agreement / 100, equal, as_share=True),
            "max_kl": Reading(self.kl, f"KL {self.kl:.2g} from the float model"),
            "max_drop": drop_reading("top-1", self.top1_quantised, self.top1_float, self.drop),
        }


class Logits(OutputKind):
    name = "logits"
    plural = "logits"
    shape = "logits [images, classes]"
    distance = "the loss"
    measured_by = "KL"
    unit = "nats"
    damage = "nats of expected damage per image"
    columns = (
        Column("top-1 %", "top1"),
        Column("top-5 %", "top5"),
        Column("drop", "drop", error="drop_error"),
        Column("agreement %", "agreement"),
        Column("KL", "kl", ".2g"),
    )
    own = 2
    limits = {"min_agreement": 0.99, "max_kl": None, "max_drop": None}  # noqa: RUF012

    def direction(self, output: Tensor, signs: Tensor) -> Tensor:
        """sqrt(p) * e - p <sqrt(p), e>"""
        p = output.detach().double().softmax(-1)
        signed = p.sqrt() * signs
        return (signed - p * signed.sum(-1, keepdim=True)).to(output.dtype)

    def fits(self, outputs: Outputs) -> bool:
        return len(outputs) == 1 and outputs[0].ndim == 2

    def classes(self, outputs: Outputs) -> int | None:
        return int(outputs[0].shape[-1])

    def agreement(self, outputs: Outputs, others: Outputs) -> float | None:
        return metrics.agreement(outputs[0], others[0])

    def alone(self, kept: Kept) -> dict[str, float | None]:
        if kept.labels is None:
            return {"top1": None, "top5": None}
        return {"top1": metrics.top1(kept.values, kept.labels), "top5": metrics.top5(kept.values, kept.labels)}

    def compare(self, kept: Kept, reference: Kept) -> LogitsAgainstFloat:
        logits, wanted, labels = kept.values, reference.values, kept.labels
        accuracy: tuple[Any, ...] = (None, None, None)
        if labels is not None:
            drop = metrics.paired_drop(wanted, logits, labels)
            accuracy = (metrics.top1(wanted, labels), metrics.top1(logits, labels), drop)
        agreement, divergence = metrics.agreement(logits, wanted), metrics.mean_kl(wanted, logits)
        return LogitsAgainstFloat(len(logits), agreement, divergence, *accuracy)
