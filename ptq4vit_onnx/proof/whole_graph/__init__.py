"""Is a file, node by node, what export writes for its float model and its plan?

checks           the checks `plan` and `graph` of parity
differences      two models compared bit for bit, their differences in words
structure        what can be said without a plan: the float model's nodes and how they hang together
sound_constants  constants that no export writes, whatever the plan
"""
