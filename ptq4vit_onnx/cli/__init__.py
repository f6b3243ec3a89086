"""The command line: the only room that prints. Exit codes: 0 done, 1 parity failed, 2 mend it, 3 our defect.

main          from arguments to an exit code: every error ends there as one line
export        `export`: arguments, and the request they stand for
exports       `export` of several models
evaluate      `eval` and `parity`
bench         `bench`
pareto        `pareto`
reproduce     `reproduce`
arguments     kinds of arguments that commands share
tables        tables as text
result_files  files that a command writes its result to
"""

DOORS = ("main",)  # what other rooms may import
