"""Settings: every knob of a job, and the named targets."""
