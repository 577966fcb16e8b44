"""What an attacker looks at in a client's upload to tell whether a record is among its own: views for `membership`.

The whole upload is always one view. The other is the record's own direction. A head at 0 moves by a record's gradient
phi (e_y - 1 / classes)^T, so a sum over records is read along it:

- dp_moments          what is sent is such a sum.
- dp_teacher, none    from outputs on the alignment set the sum is solved for. With phi the m points' features, V and g
                      eigenvectors and -values of their second moment and f the filter of `privacy.head`, a sum S gives
                      the logits phi V f V^T S, so S = V (m g f)^-1 V^T phi^T logits. A network has no such head; there
                      it is the one that comes nearest.
- weights             the confidence log p / (1 - p) of the model in the record's label (Carlini et al. 2022).

The directions also say how much other records add to what is read for one: an attacker who knows these subtracts it.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedbnn.audit.membership import Coins, Floats, Own, View, Whole
from fedbnn.features.public import Public, public
from fedbnn.federation.parties import Client
from fedbnn.methods.point import point_outputs
from fedbnn.models.regression import of_classes
from fedbnn.models.training import Records
from fedbnn.privacy.head import TEACHER, Shape, contributions, improved
from fedbnn.privacy.sums import UNIT

_FAINT = 1e-6  # directions of the alignment set with a smaller part of the first one's moment are not solved for

Views = dict[str, View]


def views_of_weights(weights: NDArray[np.float32], client: Client, candidates: Records) -> Views:
    """Of a network's weights, runs x weights."""
    labels = candidates.y.unsqueeze(1)
    found = []
    for row in weights:
        probs = of_classes(point_outputs(torch.from_numpy(row), client, candidates.x)).probs.double()
        found.append(torch.logit(probs.gather(1, labels), eps=1e-9).squeeze(1).numpy())
    return {"whole": Whole(weights.astype(np.float64)), "own": Own(np.stack(found))}


def views_of_exchange(
    sent: NDArray[Any], client: Client, candidates: Records, coins: Coins, *, others_known: bool = False
) -> Views:
    """Of what the client's mechanism sends, runs first: sums, class probabilities, or logits where there is none."""
    features = public(client.alignment, client.privacy.features, client.privacy.dimensions)
    shape = Shape(features.map.dimensions, client.classes)
    moved = contributions(features.map(candidates.x), candidates.y, shape.empty(), shape).numpy()
    if client.privacy.mechanism == "dp_moments":
        whole = sums = sent * UNIT
    else:
        logits = np.log(np.maximum(sent, np.finfo(np.float32).tiny)) if client.privacy.on else sent
        logits = logits.astype(np.float64)
        logits -= logits.mean(2, keepdims=True)
        sums = _solved(logits, client, features, shape, len(candidates) / 2)
        whole, moved = logits.reshape(len(sent), -1), moved[:, :-1]  # the count cannot be solved for
    own = sums @ moved.T
    if not others_known:
        return {"whole": Whole(whole), "own": Own(own)}
    together = moved @ moved.T
    return {"own": Own(own, coins @ together - coins * together.diagonal())}


def _solved(logits: Floats, client: Client, features: Public, shape: Shape, records: float) -> Floats:
    """The sum behind logits, runs x points x classes, without its count, of which f depends on what is expected."""
    values, vectors = features.moments
    plan = client.privacy.plan(client.rounds, client.multiplicity) if client.privacy.on else None
    total = torch.zeros(shape.numbers, dtype=torch.float64)
    total[-1] = shape.count_weight * records
    total[:-1].view(shape.features, shape.classes)[:, 0] = vectors.sum(1)  # all directions at once: f is what is left
    sd = plan.noise_multiplier * shape.sensitivity if plan else 0.0
    filtered = vectors.T @ improved(shape.empty(), total, sd, features.moments, shape, TEACHER)[:, 0].double()
    kept = values > _FAINT * values.max()
    undone = vectors[:, kept] / (len(features.phi) * values * filtered)[kept]
    back = (undone @ vectors[:, kept].T @ features.phi.double().T).numpy()
    solved: Floats = np.einsum("dp,npk->ndk", back, logits, optimize=True).reshape(len(logits), -1)
    return solved
