"""The torch model: loading it, finding its products, recording what they multiply. No ONNX.

load             from a name to a torch module with weights: hub, checkpoint, embedded, random
checkpoints      weights from a file
timm_compat      the only import of timm
discovery        every linear, patch convolution and attention product, seen as it is computed, by its site's name
patches          a patch embedding as a product
tensor_tags      which softmax, GELU or LayerNorm made a tensor
dependencies     which operations lead from the pixels to the logits
blocks           where the model can be cut, so that one block is in memory at a time
tape             the recordings of all sites: one forward pass, then block by block backwards
recording        one site's two sides and the gradient of its output
planned_product  one product as its plan computes it
channel_folding  a plan's channel scales folded into the model's LayerNorms and linears
plan_fit         whether a plan that the user brings fits the model
"""

DOORS = (
    "channel_folding",
    "load",
    "plan_fit",
    "planned_product",
    "discovery",
    "recording",
    "tape",
)  # what other rooms may import
