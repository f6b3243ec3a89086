"""What `--twin auto` chose at each softmax and GELU input, and why, in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ptq4vit_onnx.output_kinds.kinds import KINDS, OutputKind
from ptq4vit_onnx.plan.quantizers import QUANTIZERS
from ptq4vit_onnx.plan.scale_plan import SitePlan


@dataclass(frozen=True)
class TwinChoice:
    """taken: the site has the quantizer made for its source. saves: expected damage that this one takes off the best of
    the others. one_product: it was taken and its ranges may share a product."""

    taken: bool
    saves: float
    one_product: bool

    def __str__(self) -> str:
        if self.saves <= 0:
            return f"twin would add {-self.saves:.1e}: not taken"
        cost = "at no second product" if self.one_product else "for a second product"
        verdict = "taken" if self.taken else "not worth it"
        return f"twin would save {self.saves:.1e} {cost}: {verdict}"


def twin_choice(site: SitePlan) -> TwinChoice | None:
    """None where nothing was chosen: no twin was on offer, or a twin was asked for."""
    made_for_it = {form.__name__ for form in QUANTIZERS.values() if form.source is not None}
    twin = next((damage for form, damage in site.forms.items() if form in made_for_it), None)
    single = [damage for form, damage in site.forms.items() if form not in made_for_it]
    if twin is None or not single:
        return None
    taken = type(site.lhs).__name__ in made_for_it
    return TwinChoice(taken, min(single) - twin, taken and site.lhs.merged is not None)


def summary(sites: Mapping[str, SitePlan], kind: OutputKind = KINDS["logits"]) -> str | None:
    """One line for the table at the end of an export; None where nothing was chosen. kind: of the model's outputs."""
    choices = [choice for site in sites.values() if (choice := twin_choice(site)) is not None]
    if not choices:
        return None
    taken = [choice.saves for choice in choices if choice.taken]
    left = [max(choice.saves, 0.0) for choice in choices if not choice.taken]
    text = f"{len(taken)} of {len(choices)} softmax and GELU inputs take two ranges, which saves {sum(taken):.2g} "
    others = sorted({metric for site in sites.values() for metric in site.losses} - {"hessian"})
    text += f"of the loss ({', '.join(others)})" if others else kind.damage
    return text + (f"; the others would save {sum(left):.2g}, not worth second products" if left else "")
