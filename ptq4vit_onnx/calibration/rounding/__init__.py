"""What is done to a weight and its bias once scales are known, next to the inputs as they are quantised.

second_pass      weights rounded together, on more images than the search saw
moments          of the inputs, added up image by image
nearest_plane    how: each takes up what rounding those before it has changed
sensitivity      what each width of a weight is expected to cost
bias_correction  the mean error of each output, taken off its bias
"""
