"""Models of Hugging Face transformers, an optional package.

models      from a name of the hub or a folder to a module with weights
adapter     a model behind a forward that takes pixels and returns one tensor
processors  how its images are prepared, as our Preprocessing
"""
