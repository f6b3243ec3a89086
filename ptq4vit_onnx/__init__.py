"""PTQ4ViT for ONNX Runtime: vision transformers, quantised after training, executed in integers.

One model goes down this house; each room is a folder whose __init__ says what lies in it. Imports go down only:

cli           the command line
studies       other tools beside ours, the paper's tables
api           export, evaluate, check_parity in Python
pipeline      the spine: from a name to an integer ONNX file with proof, on one page
report        what an export measured
planning      a model and images -> a plan; within a budget, how many bits each weight gets
proof         does the file compute what the plan promised?
calibration   recordings -> plan            simulation    the plan on the torch model
float_export  torch -> float ONNX           passes        float ONNX + plan -> integer ONNX
evaluation    accuracy, and the distance from a reference
network       the torch model, its products, what they multiply
tasks         work for several processes or machines
model_loading a name or a file -> a torch module with weights
runtime       ONNX Runtime and this process
graph         reading ONNX files
images        images, prepared as the model wants them
plan          the waist: sites, quantizers, options, the scale plan
threads       torch on several threads, with results that do not depend on how many
output_kinds  logits, embedding, features: what an error of each costs, how each is measured
files         inputs that nobody vouches for, outputs that are whole, where results came from
models        what can be quantised by name
request, limits, progress, errors    what was asked for, how much may be asked for, bars, mistakes

`python tools/rooms.py` prints who imports whom, and fails where a rule is broken.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ptq4vit_onnx.api import check_parity, evaluate, export

__version__ = "1.0.0"
__all__ = ["__version__", "check_parity", "evaluate", "export"]


def __getattr__(name: str) -> Any:
    """The functions of `ptq4vit_onnx.api`, imported when asked for: importing the package is instant."""
    if name not in ("check_parity", "evaluate", "export"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ptq4vit_onnx import api

    return getattr(api, name)
