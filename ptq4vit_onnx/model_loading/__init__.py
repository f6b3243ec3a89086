"""From a name, a file or a module of the user's to a torch module that is ready to be calibrated. No ONNX.

load             from a name to a torch module with weights: hub, checkpoint, embedded, random
checkpoints      weights from a file
batch_norms      batch norms folded into the convolutions before them
timm_compat      the only import of timm
"""

DOORS = ("batch_norms", "load")  # what other rooms may import
