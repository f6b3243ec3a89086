"""Choose every site's quantizers from what was recorded of it: the search of the paper, made fast.

calibrate           a plan for each site: which forms it may take, and the best of them
shared_search       the same with each site's search a task of another process
search              both sides of one product: each by itself, or alternating (Algorithm 1 of the paper)
successive_halving  one side: successive halving of its candidates over growing samples
grids               the candidates: symmetric scales per group, and what each quantizer offers
objective           the loss of a candidate: Hessian, MSE, cosine or Pearson
sampling            small products that rank candidates as the whole one does
estimate            all candidates of an activation ranked with a handful of products
clipping            what clipping the largest weights costs on all rows: a control variate for samples
channel_scales      scales and centres of the channels behind a LayerNorm
rounding            weights rounded together on more images, mean errors taken off biases
widths              plans of one site at several widths of its weight
measure_evidence    histograms, search curves and damage for the report
journal             finished sites on disk, so that an interrupted run goes on
"""

DOORS = (
    "calibrate",
    "rounding",
    "shared_search",
    "measure_evidence",
    "journal",
    "widths",
)  # what other rooms may import
