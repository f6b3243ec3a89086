"""The torch model: finding its products, recording what they multiply. No ONNX.

discovery        every linear, convolution and attention product, seen as it is computed, by its site's name
calls            one product as it is computed: its two sides, whichever function multiplies them
unfolding        fused attention and einsum written out as products
patches          a convolution as a product
tensor_tags      which softmax, GELU or LayerNorm made a tensor
answers          what the model returns
dependencies     which operations lead from the pixels to the outputs
blocks           where the model can be cut, so that one block is in memory at a time
tape             the recordings of all sites: one forward pass, then block by block backwards
gradients        inputs and gradients handed on call by call instead of being kept
recording        one site's two sides and the gradient of its output
planned_product  one product as its plan computes it
channel_folding  a plan's channel scales folded into the model's LayerNorms and linears
plan_fit         whether a plan that the user brings fits the model
"""

DOORS = (
    "answers",
    "channel_folding",
    "plan_fit",
    "planned_product",
    "calls",
    "discovery",
    "unfolding",
    "gradients",
    "recording",
    "tape",
    "tensor_tags",
)  # what other rooms may import
