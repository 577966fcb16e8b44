"""A federation of real processes on one machine, to try a deployment out."""
