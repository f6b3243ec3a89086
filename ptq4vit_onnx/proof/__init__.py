"""Does the quantised file compute what its plan promised?

prove         all proofs of an export, from the inside out
kernels       the audit: is every product on an integer kernel, and can none saturate?
openvino_kernels  the same audit in OpenVINO
site_parity   every product against integer arithmetic, on the runtime's own inputs
plan_checks   weights, scales and codes in the graph against the plan
oracle        what an integer kernel must return
replay        every site against the simulator, from the runtime's own values
end_to_end    the outputs against the simulator's, bit for bit
float_parity  the float file against torch
float_sites   weights, biases and outputs of sites in a float file
layout        how a file arranges its products
whole_graph   is a file, node by node, what export writes for its float model and its plan?
parity_gate   `parity`: the checks of a file without torch, each passed, failed or skipped
parity_result limits and results of `parity`, as JSON and as JUnit
"""

# what other rooms may import
DOORS = ("end_to_end", "float_parity", "parity_gate", "parity_result", "kernels", "openvino_kernels", "prove", "replay")
