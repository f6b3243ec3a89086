"""Images to calibrate and to measure on: found, read, prepared as the model wants them.

preprocessing  resize, crop and normalise, as a value that the ONNX file carries
listing        which files of a folder are images, and their labels
loading        images of a folder, .npy or .npz, as one array
stream         the same, a few at a time
embedded       images that need no files of the user's
"""

DOORS = ("embedded", "loading", "preprocessing", "stream")  # what other rooms may import
