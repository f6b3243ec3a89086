"""Images to calibrate and to measure on: found, read, prepared as the model wants them."""
