"""Building: one flow, from a model, settings and a database to a file that runs.

    request -> the same bytes were built before?          -> the artifact that came of them
            -> schedules of its kernels from the records
            -> these were built before?                   -> the artifact that came of them
            -> compiled, written in the form that is asked for, kept
            -> listed in the database

`flow` is this picture in code, for `tune build`, `tune bench` and `tunefarm.build`. It does not
named `build`: that is the function of the package above.
"""
