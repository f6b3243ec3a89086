"""What a model answers: class logits, an embedding, or features. Each kind says what an error of it costs.

kinds  Logits, Embedding, Features: the curvature that weighs errors, one class each
"""

DOORS = ("kinds",)  # what other rooms may import
