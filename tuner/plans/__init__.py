"""What the graph decides, searched: a phase of a job before the search for schedules.

programs   a plan -> the kernels that the model has under it, and its arena
costs      a kernel -> seconds: measured ones where there are records, else estimates
problems   chains, merges -> the decisions with the lowest cost
search     the cheapest plan if luck were with it -> its kernels measured -> the next one
trials     kernels that decide -> their default schedules, measured by the job's runner
confirm    plans that should be faster -> whole models in turn with the rules' build
job_plans  all of it for the targets of a job, and what is recorded
"""
