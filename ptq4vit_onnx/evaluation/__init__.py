"""How good models are on images: what their output kind measures, alone and next to a reference.

predict   model files run over images, a few at a time, keeping what their kind measures from
sharded   the same on several workers, each with a part of the images
evaluate  each model next to the reference, in figures
"""

DOORS = ("evaluate", "predict")  # what other rooms may import
