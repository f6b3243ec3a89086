"""When a twin pays: what it must save before its second product is worth its time.

A form of quantizer is chosen by its damage plus its price in nats, or, under metrics without nats, by its damage times
its price as a ratio. A twin whose two ranges fit one byte needs no second product and costs nothing.
"""

from __future__ import annotations

# What the expected damage (1/2 g^2 d^2, in nats per image) must fall by. The two are in the ratio of what the second
# products cost in time: of a DeiT-S, twelve second P@V take 2 %, twelve second fc2 27 %. Embeddings and features pay
# the same number of their own unit, cosine distance or half the relative squared error: of the same order for 8 bits.
SOFTMAX_NATS, GELU_NATS = 2.5e-5, 4e-4
# How many times smaller the loss must be under metrics without nats.
SOFTMAX_RATIO, GELU_RATIO = 1.1, 8.0


def with_price(damage: float, nats: float, ratio: float, in_nats: bool) -> float:
    """What forms are compared by. damage: of the best pair with this form; nats, ratio: the form's prices."""
    return damage + nats if in_nats else damage * ratio
