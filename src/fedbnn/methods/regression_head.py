"""A Bayesian linear head on public features for real numbers: what speaks for a client of FedBNN in regression.

As `fedbnn.methods.head`, with a Gaussian likelihood in place of the softmax, so that everything is exact. Targets are
standardised, z are the public features with a one, and before anything is learned W ~ N(0, P^-1), P = penalty but for
the bias. Each client's noise s_i^2 is where the evidence of its own records is greatest,

    y ~ N(0, z P^-1 z^T + s^2)                                                  (MacKay 1992)

*Speaking.* With phi_bar the mean, by precision, of what all N clients sent, and sent_i what client i sent last,

    site_i = sent_i - phi_bar
    W_i    = argmin_W  (sum over own records |y - z W|^2 + grip mean over AD |z W - phi_bar + site_i|^2) / 2 s_i^2
                       + W^T P W / 2 N
    send     sent_i = z W_i + site_i on AD, and log s_i^2

which are alternating directions (Boyd et al. 2011) whose steps are as long as a client's noise is large. The mean by
precision makes the sites add up to zero, each over its s_i^2. So where all heads agree, the gradients of all records
over their noise add up to that of the prior: phi_bar is what one head fitted to all records would say.

*Predicting.* The consensus stands for N n records, own records make it the posterior, which is Gaussian:

    W | records ~ N(W, H^-1),    H = P + (N n mean over AD z z^T + sum over own records z z^T) / s^2,
    W = argmin_W  (sum over own records |y - z W|^2 + N n mean over AD |z W - phi_bar|^2) / 2 s^2

with s^2 the noise that the clients agree on; alone, the client's own. Doubt about inputs beyond the alignment set is
added to z W as in classification: at most DOUBT, the standard deviation of a target of which nothing is known.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedbnn.base.randomness import Stream, repeatable
from fedbnn.methods.head import Head
from fedbnn.models.softmax import BIAS, curvature, draw_weights, with_one

SD = 0.7  # of what the head says under its prior, in units of the scale: half of a target's variance, noise the rest
DOUBT = 1.0  # standard deviation of a target of which nothing is known
_NOISES = torch.logspace(-3, 1, 161, dtype=torch.float64)  # variances that are tried


@dataclass(frozen=True)
class RegressionHead(Head):
    """The head of a client."""

    doubt: ClassVar[float] = DOUBT

    @property
    def noise(self) -> float:
        """s_i^2, by the evidence of the client's own records."""
        z, y = self._own
        return evidence_noise(with_one(z), y[:, 0], self._prior())

    def speak(self, consensus: Tensor | None, sent: Tensor | None) -> Tensor:
        """What the client sends next: means on the alignment set and the log of its noise, points x 2."""
        points, noise = self.features.alignment, self.noise
        nothing = torch.zeros(len(points), 1, dtype=torch.float64)
        mean = nothing if consensus is None else consensus[:, :1].cpu().double()
        site = nothing if sent is None or consensus is None else sent[:, :1].cpu().double() - mean
        z, y = self._own
        weights = ridge(z, y, points, mean - site, self.grip, noise, self._prior() / self.client.clients)
        said = with_one(points) @ weights + site
        return torch.cat([said, torch.full_like(said, noise).log()], 1).float()

    def fit(self, consensus: Tensor | None) -> Tensor:
        """W of the predicting head, from own records and a consensus, if there is one yet."""
        points, noise, (z, y) = self.features.alignment, self.noise_with(consensus), self._own
        if consensus is None:
            return ridge(z, y, points, torch.zeros(len(points), 1).double(), 0.0, noise, self._prior())
        said = consensus[:, :1].cpu().double()
        return ridge(z, y, points, said, self.records, noise, self._prior())

    def noise_with(self, consensus: Tensor | None) -> float:
        """What the clients agree on, or the client's own."""
        return self.noise if consensus is None else float(consensus[:, 1].cpu().double().mean().exp())

    def posterior(self, weights: Tensor, records: float, noise: float, x: Tensor, count: int, rng: Stream) -> Tensor:
        """What `count` draws of W say of x, with the doubt about inputs beyond the alignment set [count, n]."""
        points, (own, _) = self.features.alignment, self._own
        precision = curvature(own, 1 / noise) + curvature(points, records / noise / len(points))
        precision.diagonal().add_(self._prior())
        drawn = draw_weights(weights.cpu(), precision, count, rng.on_cpu().child("head").torch())
        said = torch.einsum("nk,dkc->dnc", with_one(self.features(x.cpu())), drawn) + self.beyond(x, count, rng)
        return said[:, :, 0]

    def _prior(self) -> Tensor:
        """The diagonal of P."""
        penalty = torch.full((self.features.dimensions + 1,), self.penalty, dtype=torch.float64)
        penalty[-1] *= BIAS
        return penalty

    def _targets(self) -> Tensor:
        return self.client.train.y.cpu().double().unsqueeze(1)


def ridge(
    features: Tensor, y: Tensor, points: Tensor, said: Tensor, strength: float, noise: float, prior: Tensor
) -> Tensor:
    """W where (|y - z W|^2 + strength mean over points |z W - said|^2) / 2 noise + W^T prior W / 2 is least."""
    with repeatable(Stream(("ridge",))):  # one thread: the same bits everywhere
        z, at = with_one(features), with_one(points)
        each = strength / max(1, len(at))
        precision = (z.T @ z + at.T @ at * each) / noise
        precision.diagonal().add_(prior)
        right = (z.T @ y + at.T @ said * each) / noise
        found: Tensor = torch.cholesky_solve(right, torch.linalg.cholesky(precision))
        return found


def evidence_noise(z: Tensor, y: Tensor, prior: Tensor) -> float:
    """The s^2 among those tried under which y ~ N(0, z P^-1 z^T + s^2) is likeliest, with P = diag(prior)."""
    if len(y) == 0:
        return 1.0
    with repeatable(Stream(("ridge",))):
        left, spread, _ = torch.linalg.svd(z * prior.rsqrt(), full_matrices=False)
        along = (left.T @ y).square()
        across = (y.square().sum() - along.sum()).clamp_min(0)
        total = spread.square() + _NOISES.unsqueeze(1)
        rest = len(y) - len(spread)
        cost = total.log().sum(1) + rest * _NOISES.log() + (along / total).sum(1) + across / _NOISES
        return float(_NOISES[cost.argmin()])
