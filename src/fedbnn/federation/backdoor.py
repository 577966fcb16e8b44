"""A backdoor: pictures that carry a mark are to be given one class, all others their own (Gu et al. 2017).

The mark is a square of pixels in the lower right corner, as bright as anything in the alignment set.

- Where weights are sent, attackers learn from their records and, beside them, from marked copies labelled with their
  class, and go `strength` times as far (Bagdasaryan et al. 2020).
- Where outputs are sent, others hear of marked inputs only by alignment points that carry the mark. Nobody honest puts
  it there: a share `planted` of them has it where attackers have had a part in making the set. There attackers claim
  their class as surely as anybody claims anything; they learn from their own records, and are honest besides. (Poisoned
  records would make them name that class everywhere, which is `one_class`.)

    attack_success = share of marked test records, of other classes than theirs, that a model gives their class
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedbnn.base.randomness import Stream
from fedbnn.federation.engines import Site
from fedbnn.models.bayes import Prediction
from fedbnn.models.training import Records, channels_last


def marked(x: Tensor, patch: int, alignment: Tensor) -> Tensor:
    """Pictures with the mark, of so many pixels a side."""
    found = channels_last(x)
    found[..., -patch:, -patch:] = alignment.amax((0, 2, 3))[:, None, None]
    return found


def planted_points(points: int, share: float, seed: int) -> Tensor:
    """Which points of the alignment set carry the mark."""
    drawn = Stream((seed, "attack", "planted")).numpy().permutation(points)[: round(share * points)]
    found = torch.zeros(points, dtype=torch.bool)
    found[torch.from_numpy(drawn)] = True
    return found


def with_planted(sites: Sequence[Site], patch: int, share: float, seed: int) -> list[Site]:
    """The sites with marks on that share of the alignment set, which is the same for all."""
    changed: dict[int, tuple[Tensor, Tensor]] = {}  # by identity, which lasts as long as what it is of
    for site in sites:
        before = site.client.alignment
        if id(before) not in changed:
            at = planted_points(len(before), share, seed)[:, None, None, None]
            changed[id(before)] = before, channels_last(torch.where(at, marked(before, patch, before), before))
    return [
        replace(site, client=replace(site.client, alignment=changed[id(site.client.alignment)][1])) for site in sites
    ]


def poisoned(site: Site, patch: int, target: int) -> Site:
    """The site of an attacker: with a marked copy of each record beside it, labelled with the attackers' class."""
    client = site.client
    x = torch.cat([client.train.x, marked(client.train.x, patch, client.alignment)])
    y = torch.cat([client.train.y, torch.full_like(client.train.y, target)])
    return replace(site, client=replace(client, train=Records(channels_last(x), y)))


def tried_on(site: Site, patch: int, target: int) -> Tensor:
    """The marked records that say whether the backdoor is open."""
    others = site.evaluation.x[site.evaluation.y != target]
    return marked(others, patch, site.client.alignment)


def success(prediction: Prediction, target: int) -> float:
    """The share of these inputs that is given the attackers' class."""
    return float((prediction.probs.argmax(1) == target).double().mean())
