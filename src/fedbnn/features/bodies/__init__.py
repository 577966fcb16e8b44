"""Bodies: fixed, public functions from inputs to features, such as networks that were trained on other data before."""
