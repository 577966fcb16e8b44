"""Networks and how one is trained: architectures, flat parameters, Bayes by Backprop, Gaussian processes."""
