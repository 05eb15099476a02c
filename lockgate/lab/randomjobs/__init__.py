"""Random jobs: draw a job, say what it has to give, compare with what the planner says and with what a run gives.

    draw      a seed -> a spec: one job and its input
    build     a spec -> a `Job`, through the public API; `jobfile` writes the same as the text of a job file
    model     a spec -> what its outputs may claim, from docs/GUARANTEES.md alone
    check     the planner's verdict beside that of the model; a planner that claims more is a violation
    shrink    a spec that shows something -> a smaller one that still shows it

Nothing here may be imported by a job that runs.
"""
