"""Focus: the consensus, turned towards the classes that a client holds.

If the alignment set (AD) has every class equally often and a client class c with share s_c, a point x of AD stands for
sum_c classes * s_c p(c | x) points of the client's kind, with class probabilities in proportion to s_c p(c | x). So the
rows v * p, which are not normalised, are targets and importance weights in one: the cross-entropy towards them over AD
is that over the client's own distribution (label shift, e.g. Saerens et al. 2002).
"""

import torch
from torch import Tensor


def class_weights(labels: Tensor, classes: int, focus: float) -> Tensor:
    """v_c = 1 - focus + focus * classes * (share of class c among the labels); one on average."""
    held = torch.bincount(labels, minlength=classes).float()
    return 1 - focus + focus * classes * held / held.sum()
