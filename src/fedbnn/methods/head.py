"""A Bayesian softmax head on public features: what speaks for a client of FedBNN, and predicts beside its network.

Features z are fitted on the alignment set (AD) alone, so all clients have the same: a Gaussian kernel on wavelet
scattering for images (`fedbnn.features.kernel`), columns and Fourier features for tables (`fedbnn.features.standard`).
With few records a linear model on good fixed features knows more than a network trained from nothing. A client whose
model stands on a body (`fedbnn.features.bodies`) has the same kernel on the body's features instead: what is exchanged
are outputs, so clients need not have the same features.

*Speaking.* Clients find together, by their outputs on AD alone, the head of all their records: partitioned inference
(Bui et al. 2018) with Gaussian factors on outputs, whose means are found by alternating directions (Boyd et al. 2011).
With phi_bar the mean of what all N clients sent, and sent_i what client i sent last,

    site_i = sent_i - phi_bar                                           what i holds that the others do not
    f_i    = argmin_f  sum over own records of CE(y, f) + penalty |f|^2 / 2 N
                       + grip / 2 mean over AD |f - phi_bar + site_i|^2
    send     sent_i = f_i + site_i

Where all f_i agree the sites add up to zero, so do the gradients, and phi_bar is what one head fitted to all records
would say. Nothing but outputs on AD is sent, as in the paper, whose target gamma phi_bar + (1 - gamma) phi_i this is
for gamma = 2.

*Predicting.* The consensus is the prior of the client's own head, a Gaussian on what it says on AD, and own records
with their own label prior s make it the posterior,

    W = argmin_W  sum over own records of CE(y, z W + log(classes s)) + trust N n / 2 mean over AD |z W - phi_bar|^2
    W | records ~ N(W, H^-1),      H = penalty + trust (N n mean over AD z z^T + sum over own records z z^T)

(Laplace's approximation, with `trust` for the curvature p (1 - p) of the cross-entropy.) Fewer records widen what it
says. What AD does not tell about an input is doubt of its own, added to the variance of its logits:

    OPEN^2 open(x)  +  DOUBT^2 (1 - 1 / v),      v = novelty(x) / apart > 1

with open(x) what the kernel's points leave open, and novelty(x) > 1 that of an input beyond AD
(`StandardFeatures.novelty`), which is outside what any of this is about. Where AD is of another kind than the client's
records, these are beyond it too: `apart`, the median of their novelty or 1, is then what counts as near.

Under privacy what comes back are class probabilities that noise has been on. They are no Gaussian's mean: each point of
AD is then a record with an unsure label, all of them as much as NOISY_WEIGHT times the client's own records.
"""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fedbnn.base.randomness import Stream
from fedbnn.features.kernel import KernelFeatures, kernel_features
from fedbnn.features.public import kept
from fedbnn.features.standard import PLAIN, StandardFeatures, standard_features
from fedbnn.federation.parties import Client
from fedbnn.models.label_prior import ratio, uniform
from fedbnn.models.softmax import Ground, Rows, curvature, draw_weights, fit_head, with_one

IMAGE_SD, TABLE_SD = 3.5, 0.3  # of logits under the prior, found on validation records of CIFAR-10 and of `heart`
DOUBT = 3.5  # standard deviation of logits about which nothing is known
OPEN = 1.0  # and of those about which nothing but the alignment set's inputs is known
NOISY_WEIGHT = 10.0  # of a consensus that noise has been on, against own records
GRIP = 8.0  # which brings heads with hundreds of records each together in ten rounds


_grounds: dict[str, Ground] = {}


@dataclass(frozen=True)
class Head:
    """The head of a client.

    Attributes:
        sd: of a logit under the prior, before anything was learned.
        trust: precision that a record brings to what a head says where it lies.
        grip: how firmly a speaking head is held to the consensus, in records.
    """

    doubt: ClassVar[float] = DOUBT

    client: Client
    standard: StandardFeatures
    features: StandardFeatures | KernelFeatures
    sd: float
    trust: float
    grip: float = GRIP

    @classmethod
    def of(cls, client: Client, sd: float, trust: float, grip: float = GRIP) -> Self:
        if client.model.body:
            standard = standard_features(client.alignment.cpu(), PLAIN, mirrored=False)
            return cls(client, standard, kernel_features(standard), sd, trust, grip)
        mirrored = "flip" in client.training.augment
        standard = standard_features(client.alignment.cpu(), client.privacy.features, mirrored)
        image = client.alignment.dim() == 4  # a table's features are those of a kernel already
        return cls(client, standard, kernel_features(standard) if image else standard, sd, trust, grip)

    @property
    def penalty(self) -> float:
        """Of |W|^2 / 2: the features' variances add up to their number, so a logit's standard deviation is sd."""
        return self.features.dimensions / self.sd**2

    def speak(self, consensus: Tensor | None, sent: Tensor | None) -> Tensor:
        """What the client sends next: f_i + site_i on the alignment set, in single precision."""
        points = self.features.alignment
        nothing = torch.zeros(len(points), self.client.classes, dtype=torch.float64)
        mean = nothing if consensus is None else centred(consensus.cpu().double())
        site = nothing if sent is None or consensus is None else centred(sent.cpu().double()) - mean
        ground = self._ground(self.grip, self.penalty / self.client.clients)
        fitted = fit_head(Rows(*self._own, offset=nothing[0]), ground, mean - site)
        return centred(ground.points @ fitted + site).float()

    @property
    def records(self) -> float:
        """How many records a consensus of logits stands for: those of all clients, if each has as many as this one."""
        return float(self.client.clients * len(self.client.train))

    @property
    def apart(self) -> float:
        """How far the client's own records are from the alignment set where they are beyond it, or 1."""
        z = self.standard(self.client.train.x.cpu())
        z = z[z.isfinite().all(1)]
        return max(1.0, float(self.standard.novelty(z).median())) if len(z) else 1.0

    @property
    def noisy_records(self) -> float:
        """How many a consensus stands for that noise has been on."""
        return NOISY_WEIGHT * len(self.client.train)

    def fit(self, consensus: Tensor | None) -> Tensor:
        """W of the predicting head, from own records and a consensus of logits, if there is one yet."""
        rows = Rows(*self._own, offset=own_offset(self.client))
        if consensus is None:
            ground = self._ground(0.0, self.penalty)
            return ground.weights(fit_head(rows, ground))
        ground = self._ground(self.trust * self.records, 1e-3 * self.penalty)
        return ground.weights(fit_head(rows, ground, centred(consensus.cpu().double())))

    def fit_to(self, probabilities: Tensor) -> Tensor:
        """The same from a consensus of class probabilities, each point a record with an unsure label."""
        points, (own, labels), offset = self.features.alignment, self._own, own_offset(self.client)
        labels = torch.cat([labels, probabilities.cpu().double() * (self.noisy_records / len(points))])
        offset = torch.cat([offset.expand(len(own), -1), offset.new_zeros(len(points), len(offset))])
        ground = self._ground(0.0, self.penalty)
        return ground.weights(fit_head(Rows(torch.cat([own, points]), labels, offset), ground))

    def draws(self, weights: Tensor, records: float, x: Tensor, count: int, rng: Stream) -> Tensor:
        """Logits for `count` draws of W [count, n, classes], whose consensus stands for so many records."""
        z = self.features(x.cpu())
        points, (own, _) = self.features.alignment, self._own
        precision = curvature(own, self.trust) + curvature(points, self.trust * records / len(points))
        precision.diagonal().add_(self.penalty)
        drawn = draw_weights(weights.cpu(), precision, count, rng.on_cpu().child("head").torch())
        return torch.einsum("nk,dkc->dnc", with_one(z), drawn)

    def beyond(self, x: Tensor, count: int, rng: Stream) -> Tensor:
        """What is added to logits where the alignment set does not tell what an input is [count, n, classes].

        Each draw is a random linear function of the direction of z, so that it is one function for all inputs.
        """
        z = self.standard(x.cpu())
        variance = self.doubt**2 * (1 - 1 / (self.standard.novelty(z) / self.apart).clamp_min(1.0))
        if isinstance(self.features, KernelFeatures):
            variance = variance + OPEN**2 * self.features.open(x.cpu())
        generator = rng.on_cpu().child("beyond").torch()
        normal = torch.randn(count, z.shape[1], self._targets().shape[1], generator=generator, dtype=torch.float64)
        direction = z / torch.linalg.vector_norm(z, dim=1, keepdim=True).clamp_min(1e-12)
        return torch.einsum("nk,dkc->dnc", direction * variance.sqrt().unsqueeze(1), normal)

    def _ground(self, strength: float, penalty: float) -> Ground:
        """The prior on what a head says on the alignment set, worked out once for clients that share it."""
        key = f"{self.features.digest} {strength!r} {penalty!r}"
        return kept(_grounds, 12, key, lambda: Ground.of(self.features.alignment, strength, penalty))

    @property
    def _own(self) -> tuple[Tensor, Tensor]:
        """Features and targets of the client's records; one without finite numbers says nothing."""
        z, targets = self.features(self.client.train.x.cpu()), self._targets()
        known = z.isfinite().all(1)
        return z[known], targets[known]

    def _targets(self) -> Tensor:
        """One-hot labels of the client's records."""
        return one_hot(self.client.train.y.cpu(), self.client.classes).double()


def own_offset(client: Client) -> Tensor:
    """log(classes s): a client's own label prior against one in which no class is special, as logits."""
    return ratio(client.own_shares, uniform(client.classes)).log()


def centred(outputs: Tensor) -> Tensor:
    """Logits with a mean of zero over the classes: what is added to all of them alike says nothing."""
    return outputs - outputs.mean(-1, keepdim=True)
