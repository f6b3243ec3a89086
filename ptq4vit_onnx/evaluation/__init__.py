"""How good models are on images: accuracy, agreement and divergence, from logits alone."""
