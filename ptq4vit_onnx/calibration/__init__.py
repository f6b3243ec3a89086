"""Choose every site's quantizers from what was recorded of it: the search of the paper, made fast.

From top to bottom: `calibrate` plans each site; `channel_scales` offers scales of its input channels; `search` chooses
both sides of its product; `halving` chooses one side on growing samples; `sampling` draws the samples; `estimate` and
`clipping` make small samples do; `objective` measures; `grids` lists the candidates. `bias_correction` comes after the
search, `evidence` measures for the report what was found, `journal` keeps it for an interrupted run.
Others import `calibrate.calibrate` or `calibrate.plan_site`, `evidence.collect` and `journal.Journal`.
"""
