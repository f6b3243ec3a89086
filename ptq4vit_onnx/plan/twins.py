"""When a twin is worth its second product, and what `--twin auto` chose at each softmax and GELU input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ptq4vit_onnx.plan.quantizers import Quantizer, TwinGelu, TwinSoftmax
from ptq4vit_onnx.plan.scale_plan import SitePlan

# What the expected damage (1/2 g^2 d^2, in nats per image) must fall by before a twin is worth its second product. The
# two are in the ratio of what they cost in time: of a DeiT-S, twelve second P@V take 2 %, twelve second fc2 27 %.
SOFTMAX_NATS, GELU_NATS = 2.5e-5, 4e-4
# The same for metrics without nats: how many times smaller the loss must be.
SOFTMAX_RATIO, GELU_RATIO = 1.1, 8.0


def needs_second_product(lhs: Quantizer) -> bool:
    return isinstance(lhs, (TwinSoftmax, TwinGelu)) and not lhs.fits_a_byte


def price_in_nats(lhs: Quantizer) -> float:
    if not needs_second_product(lhs):
        return 0.0
    return SOFTMAX_NATS if isinstance(lhs, TwinSoftmax) else GELU_NATS


def price_as_ratio(lhs: Quantizer) -> float:
    if not needs_second_product(lhs):
        return 1.0
    return SOFTMAX_RATIO if isinstance(lhs, TwinSoftmax) else GELU_RATIO


_TWINS = ("TwinSoftmax", "TwinGelu")


@dataclass(frozen=True)
class TwinChoice:
    """taken: the site has two ranges. saves: expected damage that a twin takes off the best single range."""

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
    twin = next((damage for form, damage in site.forms.items() if form in _TWINS), None)
    single = [damage for form, damage in site.forms.items() if form not in _TWINS]
    if twin is None or not single:
        return None
    taken = isinstance(site.lhs, (TwinSoftmax, TwinGelu))
    one = isinstance(site.lhs, (TwinSoftmax, TwinGelu)) and site.lhs.fits_a_byte
    return TwinChoice(taken, min(single) - twin, one)


def summary(sites: Mapping[str, SitePlan]) -> str | None:
    """One line for the table at the end of an export; None where nothing was chosen."""
    choices = [choice for site in sites.values() if (choice := twin_choice(site)) is not None]
    if not choices:
        return None
    taken = [choice.saves for choice in choices if choice.taken]
    left = [max(choice.saves, 0.0) for choice in choices if not choice.taken]
    text = f"{len(taken)} of {len(choices)} softmax and GELU inputs take two ranges, which saves {sum(taken):.2g} "
    others = sorted({metric for site in sites.values() for metric in site.losses} - {"hessian"})
    text += f"of the loss ({', '.join(others)})" if others else "nats of expected damage per image"
    return text + (f"; the others would save {sum(left):.2g}, not worth second products" if left else "")
