"""Images to calibrate and to measure on: found, read, prepared as the model wants them.

preprocessing  resize, crop and normalise, as a value that the ONNX file carries
listing        which files of a folder are images, and their labels
arrays         images as numpy writes them, .npy and .npz
loading        images of a folder, .npy or .npz, as one array
stream         the same, a few at a time
shards         a source cut into parts for several workers
choice         which images an export calibrates on, and which it measures on
inspection     whether images are fit to calibrate on: constant, copies, values that fit no normalisation
embedded       the handwritten digits of the embedded models
builtin        photographs that ship with the package, cropped at random
"""

DOORS = (
    "builtin",
    "choice",
    "embedded",
    "inspection",
    "listing",
    "loading",
    "preprocessing",
    "shards",
    "stream",
)  # what other rooms may import
