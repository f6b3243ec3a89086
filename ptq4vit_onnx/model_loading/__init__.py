"""From a name, a file or a module of the user's to a torch module that is ready to be calibrated. No ONNX.

load                 from a name or a module to a LoadedModel
given_module         whether a module of the user's can be taken, and its preprocessing
wanted               what a source of models is asked for, and what it gives back
timm_models          timm and the embedded models: hub, checkpoint, embedded, random
huggingface          Hugging Face transformers: hub, folder, checkpoint, random
torchvision_models   torchvision: its own weights, checkpoint, random
output_kind          logits, embedding or features: what a model is taken for
trial                one forward pass: what it returns, or why it fails
checkpoints          weights from a file
batch_norms          batch norms folded into the convolutions before them
hub                  whether the hub can be reached, and its cache
timm_compat          timm, imported also next to a torchvision that was built for another torch
"""

DOORS = ("batch_norms", "load", "given_module", "trial")  # what other rooms may import
