"""Secure aggregation: clients' sums are added so that the server sees only their total; knows nothing of federation.

The pairwise-mask protocol of Bonawitz et al. (Practical Secure Aggregation for Privacy-Preserving Machine Learning, CCS
2017) modulo 2^64. Primitives are those of the package `cryptography` (the extra `secure`).
"""
