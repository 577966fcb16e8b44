"""How near a mean network is to what the client itself predicts."""

import torch
from torch import Tensor

from fedbnn.deployment.loaded import LoadedRun
from fedbnn.deployment.mean_network import MeanNetwork
from fedbnn.models.bayes import Prediction
from fedbnn.models.regression import Mixture
from fedbnn.report.figures import show, target


def nearness(run: LoadedRun, client: int, network: MeanNetwork) -> str:
    """In a sentence, from the test records that are the client's concern.

    Of an unscored client, which has none, from the public alignment set.
    """
    own = run.data.own_mask(client, "test")
    x, kind = run.data.dataset.x_test[own], "test records"
    if not own.any():
        x, kind = run.data.loaded_alignment, "public alignment points"
    if len(x) == 0:
        return "There are no records to compare it with the client on."
    full = run.predict(client, x).prediction
    with torch.inference_mode():
        said = network(torch.from_numpy(x))
    told = _of_numbers(full, *said) if isinstance(full, Mixture) else _of_classes(full, *said)
    return f"On {len(x)} {kind} {told}."


def _of_classes(full: Prediction, probs: Tensor) -> str:
    same = float((full.probs.argmax(1) == probs.argmax(1)).double().mean())
    apart = float((full.probs - probs).abs().double().mean())
    return (
        f"it names the class that the client itself names on {same:.1%}; probabilities differ by {apart:.3f} on average"
    )


def _of_numbers(full: Mixture, mean: Tensor, sd: Tensor) -> str:
    apart = (full.mean - mean).abs()
    own = float(full.sd.mean())
    in_unit = [show(one, lambda _: target(own)) for one in (float(apart.mean()), float(sd.mean()), own)]
    return (
        f"its mean differs from the client's own by {in_unit[0]} on average ({float((apart / full.sd).mean()):.3f} of "
        f"what the client takes as standard deviation), and its `sd` is {in_unit[1]} on average where the client's own "
        f"is {in_unit[2]}"
    )
