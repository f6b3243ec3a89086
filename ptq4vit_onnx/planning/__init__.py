"""From a model and images to a plan: recordings, the search, rounding; and, within a budget, how many bits each weight
gets.

sites         every site's plan at one width of weights
widths        every site's plan at every width of weights, and what each is expected to cost
"""

DOORS = ("sites", "widths")  # what other rooms may import
