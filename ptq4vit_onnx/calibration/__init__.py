"""Choose every site's quantizers from what was recorded of it: the search of the paper, made fast."""
