"""ONNX operators that move elements and compute nothing: the one table of them.

A code (an integer that stands for a number) is the same before and after such an operator, so a quantisation step may
change places with it, and a tensor's codes can be followed through it.
"""

from __future__ import annotations

from enum import Enum


class Movement(Enum):
    """What becomes of the elements of an operator's first input."""

    REARRANGES = "every element arrives once"
    REBLOCKS = "every element arrives once, but elements change between the channel axis and the image's axes"
    PICKS = "some elements arrive"
    JOINS = "the elements of all inputs arrive"
    REPEATS = "elements may arrive several times"
    PADS = "elements arrive that are in no input"


MOVEMENTS: dict[str, Movement] = {
    **dict.fromkeys(("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose"), Movement.REARRANGES),
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), Movement.REBLOCKS),
    **dict.fromkeys(("Slice", "Split", "Gather"), Movement.PICKS),
    "Concat": Movement.JOINS,
    "Expand": Movement.REPEATS,
    "Pad": Movement.PADS,
}


def operators(*movements: Movement) -> frozenset[str]:
    """The operators that make one of these movements."""
    return frozenset(name for name, movement in MOVEMENTS.items() if movement in movements)


MOVING = frozenset(MOVEMENTS)
# The values after one of these are among the values before.
KEEPING_VALUES = MOVING - operators(Movement.PADS)
# Quantising before one of these costs what quantising after it does: the number of elements stays.
REARRANGING = operators(Movement.REARRANGES)
# One input with data, and every element of the output is one element of it.
REARRANGING_OR_PICKING = operators(Movement.REARRANGES, Movement.PICKS)
# All elements are those of the inputs, and a LayerNorm's channels may still be the last axis.
KEEPING_CHANNELS = operators(Movement.REARRANGES, Movement.PICKS, Movement.JOINS)
