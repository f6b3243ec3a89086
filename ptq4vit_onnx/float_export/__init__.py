"""From the torch model to the float ONNX file whose nodes carry their sites' names: torch and ONNX meet here.

exporter        torch's exporter, its errors in one line, the file's metadata
stored_weights  weights that are parts of others, stored by themselves
bind_sites      the exporter's nodes renamed by site; nobody else reads the exporter's metadata
"""

DOORS = ("exporter",)  # what other rooms may import
