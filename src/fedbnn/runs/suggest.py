"""Which method and which settings fit a federation, and why: rules, each behind which stands something measured.

They look at what is public about a federation or known to who asks: kind of records, how many, who holds which classes,
architectures, alignment set, privacy. What they say holds on the committed results, and is no promise elsewhere:
`fedbnn compare` tells on the data itself.
"""

import shlex
from dataclasses import dataclass

import numpy as np

from fedbnn.base.errors import UserError
from fedbnn.data import FederatedData
from fedbnn.privacy.forecast import forecast
from fedbnn.privacy.mechanism import MECHANISMS, Sizes
from fedbnn.runs.config import Config

FEW_POINTS = 300  # alignment points of images; results are of 2000, of tables of 100


@dataclass(frozen=True)
class Facts:
    """Of a federation, as far as suggestions depend on them."""

    images: bool
    clients: int
    records: int  # of the median client
    least: int  # of the smallest
    classes: int
    held: float  # mean number of classes of a client
    architectures: int
    alignment: int
    epsilon: float | None  # None: no privacy
    delta: float
    dimensions: int
    multiplicity: int
    photographs: bool  # images of three channels
    rounds: int

    @classmethod
    def of(cls, config: Config, data: FederatedData) -> "Facts":
        if data.dataset.scale is not None:
            raise UserError(
                "data.task = 'regression': suggestions rest on committed results, and these are of classification; on "
                "the data itself `fedbnn compare CONFIG` tells which of the methods that learn real numbers is best, "
                "and `fedbnn tune CONFIG --aim crps --set data.validation=RECORDS` which settings are"
            )
        sizes = [len(rows) for rows in data.client_indices]
        shape = data.dataset.input_shape
        return cls(
            images=len(shape) == 3,
            clients=data.n_clients,
            records=int(np.median(sizes)),
            least=min(sizes),
            classes=data.dataset.classes,
            held=float(np.mean([len(data.own_classes(i)) for i in range(data.n_clients)])),
            architectures=len({model.architecture for model in config.models}),
            alignment=data.alignment_points,
            epsilon=config.privacy.epsilon if config.privacy.on else None,
            delta=config.privacy.delta,
            dimensions=config.privacy.dimensions,
            multiplicity=data.multiplicity,
            photographs=len(shape) == 3 and shape[0] == 3,
            rounds=config.rounds,
        )


@dataclass(frozen=True)
class Suggestion:
    """A method with what to set beside it, and why; `where` is the page or table that it rests on."""

    method: str
    why: str
    where: str
    settings: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """What to add to `fedbnn run CONFIG`."""
        return " ".join(f"--set {shlex.quote(change)}" for change in (f"method={self.method}", *self.settings))


def suggest(facts: Facts) -> list[Suggestion]:
    """The best first."""
    if facts.alignment == 0:
        return _without_alignment(facts)
    if facts.epsilon is not None:
        return _private(facts)
    found = [_fedbnn(facts)]
    if facts.images and facts.architectures == 1:
        inputs = "mirrored_kernel_features" if facts.photographs else "kernel_features"
        found.append(
            Suggestion(
                "feddyn",
                "a linear model on the features of FedBNN's heads, asked with a client's own class shares (the variant "
                "global_own_prior), is as accurate and nearly as well calibrated, in a fraction of the time; it is one "
                "model without a posterior, so it has no epistemic uncertainty to tell records nobody has seen",
                "results/cpu/field.md",
                (
                    f"data.inputs={inputs}",
                    'models=[{name="mlp",options={hidden=[]}}]',
                    "training.augment=none",
                    *(f"methods.feddyn.{name}" for name in ("learning_rate=0.004", "weight_decay=0.01", "alpha=0.1")),
                ),
            )
        )
    return found


def _fedbnn(facts: Facts) -> Suggestion:
    why = []
    if facts.architectures > 1:
        why.append("clients have different networks, so weights cannot be averaged, and outputs can")
    if facts.held < facts.classes:
        why.append(
            f"a client holds {facts.held:.3g} of {facts.classes} classes: asked with its own class shares the model is "
            "best on these, asked with every class alike it knows the others too"
        )
    why.append("probabilities are calibrated, and uncertainty tells records nobody has seen the like of")
    if facts.images and facts.alignment < FEW_POINTS:
        why.append(
            f"{facts.alignment} alignment points are few for images: heads agree only about what points tell apart; "
            "raise data.alignment if you can"
        )
    name = "images" if facts.images else "table"
    return Suggestion("fedbnn", "; ".join(why) + f"; the preset '{name}' has settings found for it", "docs/results.md")


def _without_alignment(facts: Facts) -> list[Suggestion]:
    source = 'data.alignment_source="fractals"' if facts.images else ""
    found = []
    if facts.architectures == 1:
        found.append(
            Suggestion(
                "fedavg",
                "there is no alignment set, and all clients run one network: weights can be averaged",
                "docs/methods/index.md",
            )
        )
    else:
        found.append(
            Suggestion(
                "local_bnn",
                "there is no alignment set and networks differ: clients stay alone, and know how sure they are",
                "docs/methods/index.md",
            )
        )
    if facts.images:
        found.append(
            Suggestion(
                "fedbnn",
                "images that are made from chance can serve as alignment set, at a loss",
                "results/cpu/domain.md",
                ("data.alignment=2000", source),
            )
        )
    return found


def _private(facts: Facts) -> list[Suggestion]:
    """The mechanism whose signal is strongest against its noise; alone, if that of all is drowned."""
    sizes = Sizes(facts.records, facts.classes, facts.dimensions, facts.alignment, facts.clients)
    heard: dict[str, float] = {}
    for name in ("dp_teacher", "dp_moments"):
        releases = MECHANISMS[name].releases(facts.rounds)
        try:
            told = forecast(
                name, facts.delta, sizes, epsilon=facts.epsilon, releases=releases, multiplicity=facts.multiplicity
            )
        except UserError:  # a delta that protects nobody, for instance: the run will say so
            continue
        heard[name] = told.one_client if told.all_clients is None else told.all_clients
    alone = Suggestion(
        "local_bnn",
        f"sends nothing, and so costs no privacy; with {facts.records} records a client a network of its own may be as "
        "good on its own classes as what noise leaves of a consensus: compare",
        "docs/results-privacy.md",
    )
    if not heard or max(heard.values()) < 1:
        return [alone]
    best = max(heard, key=lambda name: heard[name])
    return [
        Suggestion(
            "fedbnn",
            f"of the mechanisms, '{best}' leaves most of the signal (signal to noise {heard[best]:.1f} with "
            f"{facts.records} records a client and {facts.clients} clients at epsilon {facts.epsilon:g})",
            "docs/results-privacy.md",
            (f"privacy.mechanism={best}",),
        ),
        alone,
    ]
