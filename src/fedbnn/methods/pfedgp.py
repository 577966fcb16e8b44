"""pFedGP (Achituve, Shamsian, Navon, Chechik, Fetaya 2021): a shared embedding under personal Gaussian process trees.

The network gives an embedding and is averaged, with equal weights. Each client's classifier is a tree of binary
Gaussian processes over its own classes (`fedbnn.models.gp`), without weights of its own: it conditions on its records.
A round of a client: build the tree from the class means of the received embedding; `inner_steps` steps of gradient
descent with momentum on the tree's loss over all of its records; send the embedding's weights.

Scored is the personal model: the server's newest embedding with the client's tree. It gives classes the client does not
hold zero probability. The embedding is the client's architecture with `embedding` outputs instead of one per class.

Cost: Gibbs sampling factorises a matrix of the node's records (in training, of half of them) per node, chain and step:
about m^3 / 3 x chains x steps x 1.3 operations for a balanced tree over m records, and m^2 x chains numbers of memory.
`benchmarks/methods.py` shows how time grows: nearer to m^2 up to some hundred records. Above `record_cap` records a
client uses a random, class-balanced subset, drawn anew in each step of training and once for prediction. The embedding
is computed on the client's device; the tree is sampled on the CPU, in double precision and with numpy's generators.
"""

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

from fedbnn.base.randomness import Stream
from fedbnn.base.settings import settings
from fedbnn.federation.message import Message
from fedbnn.federation.method import Update, Variant
from fedbnn.federation.parties import Client, Roster
from fedbnn.methods.averaging import Averaging, Global
from fedbnn.methods.point import Point
from fedbnn.models.bayes import Prediction, logits_of
from fedbnn.models.gp import GPSettings, Kernel, fit_tree, predict_tree, sampler, subset, tree_loss


@settings
class PFedGP(Averaging[Point]):
    """A shared embedding with a Gaussian process tree for every client."""

    name = "pfedgp"
    summary = "a shared embedding under personal Gaussian process classifiers"
    client_state = Point
    by_records = False

    embedding: int = Field(default=84, ge=1, description="dimensions of the shared embedding")
    inner_steps: int = Field(
        default=1, ge=1, description="gradient steps in a round, each on all of a client's records"
    )
    learning_rate: float = Field(default=0.05, gt=0, description="step size of gradient descent")
    momentum: float = Field(default=0.9, ge=0, lt=1, description="momentum of gradient descent, begun anew each round")
    weight_decay: float = Field(default=1e-3, ge=0, description="L2 penalty on the embedding's weights")
    gradient_clip: float = Field(default=50.0, gt=0, description="longest gradient of a step")
    outputscale: float = Field(default=8.0, gt=0, description="prior variance of a node's latent function")
    lengthscale: float = Field(default=1.0, gt=0, description="length scale on the sphere of normalised embeddings")
    gibbs_steps: int = Field(default=5, ge=1, description="Gibbs steps of a chain")
    train_chains: int = Field(default=20, ge=1, description="Gibbs chains in training")
    test_chains: int = Field(default=30, ge=1, description="Gibbs chains in prediction")
    record_cap: int = Field(
        default=500, ge=2, description="most records a client conditions on; the cost is their cube"
    )

    def gp(self, chains: int) -> GPSettings:
        return GPSettings(Kernel(self.outputscale, self.lengthscale), chains, self.gibbs_steps)

    def client_init(self, client: Client) -> Point:
        """What the client knows of the embedding before it has heard of any: nothing."""
        return Point(torch.zeros_like(client.network_with(self.embedding).weights))

    def client_update(
        self, state: Point, client: Client, message: Message, round_number: int, rng: Stream
    ) -> Update[Point]:
        network = client.network_with(self.embedding)
        start, labels = message.arrays["weights"], client.train.y.cpu()
        tree = fit_tree(logits_of(network, start, client.train.x).cpu(), labels)
        network.train()
        network.weights.copy_(start)
        parameter = torch.nn.Parameter(network.weights, requires_grad=False)
        parameter.grad = network.gradient
        optimiser = torch.optim.SGD(
            [parameter], self.learning_rate, self.momentum, weight_decay=self.weight_decay, fused=True
        )
        here = rng.on_cpu()
        choice, normal, gamma = here.child("records").torch(), here.child("gibbs").torch(), here.child("omega").numpy()
        mirror = rng.child("augment").torch()
        loss = torch.zeros(())
        for _ in range(self.inner_steps):
            index = subset(labels, self.record_cap, choice)
            network.gradient.zero_()
            seen = client.train.take(index.to(client.device)).varied(client.training.augment, mirror)
            embedded = network(seen.x).cpu()
            loss = tree_loss(embedded, labels[index], tree, self.gp(self.train_chains), normal, gamma)
            loss.backward()
            torch.nn.utils.clip_grad_norm_([parameter], self.gradient_clip)
            optimiser.step()
        weights = network.weights.clone()
        return Update(Point(weights), self.upload(weights, client), {"loss": float(loss.detach())})

    def predict(self, state: Point, client: Client, x: Tensor, rng: Stream) -> Prediction:
        network = client.network_with(self.embedding)
        here, labels = rng.on_cpu(), client.train.y.cpu()
        index = subset(labels, self.record_cap, here.child("records").torch())
        seen = client.train.take(index.to(client.device))
        embedded, known = logits_of(network, state.weights, seen.x).cpu(), labels[index]
        probs, aleatoric = predict_tree(
            embedded,
            known,
            logits_of(network, state.weights, x).cpu(),
            client.classes,
            fit_tree(embedded, known),
            self.gp(self.test_chains),
            here.child("gibbs").torch(),
            here.child("omega").numpy(),
        )
        return Prediction.of(probs, aleatoric)

    def scored(self, state: Point, client: Client, message: Message, rng: Stream) -> Mapping[Variant, Point]:
        return {"personal": Point(message.arrays["weights"])}

    def server_init(self, roster: Roster) -> Global:
        sampler()  # what is not installed is told before any work
        return super().server_init(roster)

    def initial(self, roster: Roster) -> Tensor:
        return roster.initial_weights(0, self.embedding)

    def initial_size(self, roster: Roster) -> int:
        return roster.network(0, self.embedding).size
