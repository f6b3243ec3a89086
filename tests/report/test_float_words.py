"""Products that stay in float are named by reason."""

from __future__ import annotations

from ptq4vit_onnx.report.float_words import by_reason


def test_products_of_one_reason_share_a_sentence_with_the_first_names() -> None:
    floats = {**{f"stem.{number}": "in 32 groups" for number in range(5)}, "mix": "its weight is used twice"}
    assert by_reason(floats) == [
        "5 products (stem.0, stem.1, stem.2 and 2 more): in 32 groups",
        "1 product (mix): its weight is used twice",
    ]
    assert by_reason({}) == []
