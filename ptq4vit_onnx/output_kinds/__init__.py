"""What a model answers: class logits, an embedding, or features. Each kind says what an error of it costs.

output_kind  what a kind is: its curvature, its metrics, its limits, its words
kinds        all kinds, by name
logits       classes: agreement, KL divergence, top-1
embedding    one vector: cosine, nearest neighbours, k-NN accuracy
features     tokens and maps, one or several outputs: cosine and relative error of every token
metrics      top-1, agreement, KL divergence, paired drop, relative error
neighbours   the nearest by cosine, and their vote
"""

DOORS = ("kinds", "metrics", "output_kind")  # what other rooms may import
