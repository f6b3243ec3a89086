"""From a model and images to a plan: recordings, the search, rounding; and, within a budget, how many bits each weight
gets.

make_plan     the plan of an export, at the widths asked for or within a budget
sites         every site's plan at one width of weights
widths        every site's plan at every width of weights, and what each is expected to cost
allocation    bits within a number of bytes, by what each step saves
within_budget single widths and mixtures, built, measured and compared
trial_files   files that a choice is made between
"""

DOORS = ("make_plan", "sites", "trial_files", "widths", "within_budget")  # what other rooms may import
