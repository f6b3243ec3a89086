"""Read ONNX files: products and their codes, the values a tensor can hold, operators that move data, metadata.

model_proto       ONNX models as protobuf messages: read, written, measured in bytes
model_file        what a file says about itself: model, weights, how images are prepared
integer_products  which node computes which site, on which kernel, from which codes and scales
float_products    the products that a graph computes in float, and which of the file's they are
code_paths        codes followed back to the node that made them
value_ranges      interval arithmetic: the lowest and highest value a tensor can hold
movement          the one table of ONNX operators that move elements and compute nothing
"""

DOORS = (
    "code_paths",
    "float_products",
    "integer_products",
    "model_file",
    "model_proto",
    "movement",
    "value_ranges",
)  # what other rooms may import
