"""Run these tasks, in any order, and give me their results as they come: on processes of this machine, or on Ray.

task        a call that depends on its arguments and files alone, what became of it, and what runs such calls
start       the choice: processes of this machine, or a Ray cluster
local       processes of this machine
on_ray      a Ray cluster; the only module that imports ray
one_by_one  this process alone
worker      a task inside a worker: its threads, its mistakes, its warnings
travel      files on a machine that does not have them: sent once, kept there by their content
ambient     workers that a long computation may share its inner work with
ledger      which machine and which worker did what
"""

DOORS = ("ambient", "ledger", "one_by_one", "start", "task", "travel")  # what other rooms may import
