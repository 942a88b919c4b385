"""Building: records chosen, code kept, artefacts and other forms written.

Not named `build`: that is the function of the package above.
"""
