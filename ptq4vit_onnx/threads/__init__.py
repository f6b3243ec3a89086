"""Torch on several threads, with results that do not depend on how many there are.

torch shares a sum out among its threads, so the order in which floats are added up, and with it the last bits, depends
on their number: of sums of a whole tensor, of the softmax's gradient, of some products. A scale is chosen by comparing
losses, and a last bit decides between two that are nearly equal. Rounding the losses first would only move the place
where a bit decides. So whatever a plan depends on is computed by one thread from beginning to end, and several threads
share out whole pieces of work, which are cut by their shapes alone.

side_by_side  a function of many items, several items at once
fixed_order   an operation at a time on one thread; large products in pieces, side by side
"""

DOORS = ("fixed_order", "side_by_side")  # what other rooms may import
