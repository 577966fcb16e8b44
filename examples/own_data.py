"""Your own arrays and your own torch model in a federation with unlike partners, and a prediction with its uncertainty.

Four clients with some of three classes each: two run a network of ours, two the one below. About ten seconds.
"""

import math

import numpy as np
import torch
from torch import nn

import fedbnn

CLASSES = ("calm", "rising", "falling")


def curves(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Twenty noisy measurements each: the arrays that you would load from your files."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(len(CLASSES), size=count)
    slopes = np.array([0.0, 1.5, -1.5])[labels]
    values = slopes[:, None] * np.linspace(-1, 1, 20) + rng.normal(scale=0.8, size=(count, 20))
    return values.astype(np.float32), labels.astype(np.int64)


def narrow(input_shape: tuple[int, ...], classes: int, width: int = 16) -> nn.Module:
    """A network of your own: any torch module that gives one logit a class."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), width), nn.Tanh(), nn.Linear(width, classes))


def main() -> None:
    """Deal the records, run three rounds, and ask the first client."""
    data = fedbnn.Dataset("curves", *curves(600, 0), *curves(200, 1), class_names=CLASSES)
    partition = fedbnn.PartitionSettings(clients=4, classes_per_client=2, records_per_class=20)
    dealt = fedbnn.federate(data, fedbnn.DataSettings(alignment=150), partition, seed=0)
    models = [fedbnn.ModelSettings("mlp"), fedbnn.ModelSettings(f"{__name__}:narrow", options={"width": 12})]
    sites = fedbnn.make_sites(dealt, models, fedbnn.TrainingSettings(warmup_epochs=20, local_epochs=10))
    method = fedbnn.FedBNN(initial_rho=-2.5, kl_weight=1.0, prior_sd=1.0, mc_samples=20)
    federation = fedbnn.Federation(method, sites)

    for done in federation.run(rounds=4):
        scores = [variants["general"].scores["all_class_accuracy"] for variants in done.scores.values()]
        print(f"round {done.number}: all-class accuracy {np.mean(scores):.3f}")

    print("client 0 holds", " and ".join(CLASSES[label] for label in dealt.own_classes(0)))
    usual, strange = dealt.evaluation("test")[0], 4 * np.ones((1, 20), dtype=np.float32)
    for name, x in (("usual curves", usual), ("a strange one", strange)):
        prediction = federation.predict(client=0, x=torch.from_numpy(x), variant="general")
        noise, lack = prediction.aleatoric.mean(), prediction.epistemic.mean()
        print(f"{name}: uncertainty from noise {noise:.3f}, from lack of knowledge {lack:.3f}")
    federation.close()


if __name__ == "__main__":
    main()
