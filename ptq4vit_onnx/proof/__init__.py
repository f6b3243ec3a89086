"""Does the quantised file compute what its plan promised? Kernels, products, sites, logits."""
