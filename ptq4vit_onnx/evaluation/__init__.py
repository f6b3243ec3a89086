"""How good models are on images: accuracy, agreement and divergence, from logits alone.

metrics   top-1, agreement, KL divergence, paired drop, relative error
evaluate  model files run over images, each next to a reference
compare   the quantised model against the float one
"""

DOORS = ("compare", "evaluate", "metrics")  # what other rooms may import
