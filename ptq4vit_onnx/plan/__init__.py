"""The waist: sites, quantizers, options and the scale plan, as plain values. Neither torch nor ONNX.

sites                    a product of the network by its name; the names of attention's products
quantizers               how values are rounded: uniform, affine, twins; each answers for itself
options                  every choice about calibration; the presets of the paper
scale_plan               everything that calibration decided, site by site
plan_json                plan.json: written, read, checked
code_file                plan.safetensors beside it: codes of weights that the plan carries
saturation_safe_weights  the int8 weights that ship: no pair of products saturates without VNNI
channel_fold             scales of single input channels, folded into the layers around them
outlier_split            outlier channels in a product of their own
exact_product            products of whole numbers, exact in floating point
budget                   what a file may cost, and how that was spent
file_layout              layout choices of a file that change float rounding
evidence                 what calibration saw of a site, for the report
"""

DOORS = (
    "code_file",
    "budget",
    "channel_fold",
    "evidence",
    "exact_product",
    "file_layout",
    "options",
    "outlier_split",
    "plan_json",
    "quantizers",
    "scale_plan",
    "sites",
    "saturation_safe_weights",
)  # what other rooms may import
