"""Gaussian process classification on embeddings: a tree of binary problems, sampled with Polya-Gamma variables."""

from fedbnn.models.gp.classifier import ClassTree, GPSettings, fit_tree, predict_tree, subset, tree_loss
from fedbnn.models.gp.kernel import Kernel
from fedbnn.models.gp.polya_gamma import sampler

__all__ = ["ClassTree", "GPSettings", "Kernel", "fit_tree", "predict_tree", "sampler", "subset", "tree_loss"]
