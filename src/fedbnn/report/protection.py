"""What each mechanism protects, against whom, and what it does not protect, in plain words."""

import math
from dataclasses import dataclass

from fedbnn.privacy.mechanism import known_mechanisms

_EVERYBODY = (
    "The server and all other clients, also if they work together, and whoever else sees what was sent. Each client "
    "adds the noise itself: the server need not be trusted."
)
_ALL_BUT_SERVER = (
    "The other clients and whoever else sees the averaged models. Not the server: it sees what every client sends and "
    "is trusted to add the noise."
)
_LEDGERS = (
    "Every release that is in the clients' ledgers: those of this run, and of all other runs of a client with the same "
    "folder of ledgers. ε is that of the client which spent most; “fedbnn privacy spent” tells each one's."
)
_SERVERS_LEDGER = "The rounds that are in the server's ledger. ε is that of the client which took part most often."

_AT_HOME = (
    " models: they stay with their clients and are trained without noise. Whoever is given one, or its predictions, "
    "learns more than ε says."
)
_PERSON = "Several records of one person: each of them counts, so together they are protected less."
_PUBLIC = (
    "Who takes part, how many clients there are, their names and models, when they answer; and the alignment set, "
    "which is public."
)
_FOLDER = (
    "This page and the run's folder: in a simulation scores, diagnostics and sizes come from the records themselves."
)
_UPLOADS = "What a client sends, from the server: only the average over clients has noise."


@dataclass(frozen=True)
class Protection:
    """Attributes:

    sent: what leaves a client.
    against: from whom it is protected.
    counted: which releases ε is of.
    gaps: what is not protected.
    brief: the most important of it, in two lines of a terminal.

    """

    sent: str
    against: str
    counted: str
    gaps: tuple[str, ...]
    brief: str


def _by_ledger(sent: str) -> Protection:
    gaps = (f"Personal{_AT_HOME}", _PERSON, _PUBLIC, _FOLDER)
    return Protection(sent, _EVERYBODY, _LEDGERS, gaps, _brief("personal"))


def _brief(models: str) -> str:
    return (
        "protected: any one record in what clients sent, from server and others\n"
        f"not protected: {models} models, a person's many records, this folder"
    )


PROTECTIONS: dict[str, Protection] = {
    **{name: _by_ledger(one.sent) for name, one in known_mechanisms().items() if name != "none"},
    "DP-SGD": Protection(
        "Weights of a network that the client trained by DP-SGD: clipped gradients, and noise in every step.",
        _EVERYBODY,
        _LEDGERS,
        (f"Fine-tuned{_AT_HOME}", _PERSON, _PUBLIC, _FOLDER),
        _brief("fine-tuned"),
    ),
    "DP-FedSGD": Protection(
        "Sums of clipped gradients over the client's records, with noise on every number.",
        _EVERYBODY,
        _LEDGERS,
        (f"Fine-tuned{_AT_HOME}", _PERSON, _PUBLIC, _FOLDER),
        _brief("fine-tuned"),
    ),
    "DP-SCAFFOLD": Protection(
        "Weights of a network, and the mean of the clipped gradients that led to them, with noise on every gradient.",
        _EVERYBODY,
        _LEDGERS,
        (f"Fine-tuned{_AT_HOME}", _PERSON, _PUBLIC, _FOLDER),
        _brief("fine-tuned"),
    ),
    "PATE": _by_ledger(
        "Counts, with noise on each, of how models that were trained on parts of the client's records vote at some "
        "points of the alignment set."
    ),
    "DP-FedAvg": Protection(
        "The change that local training makes to a network's weights, clipped but without noise.",
        _ALL_BUT_SERVER,
        _SERVERS_LEDGER,
        (_UPLOADS, f"Fine-tuned{_AT_HOME}", _PUBLIC, _FOLDER),
        "protected: any one client in the averaged models, from all but the server\n"
        "not protected: what the server sees, fine-tuned models, this folder",
    ),
}


def meaning(epsilon: float, delta: float, unit: str) -> str:
    """What (ε, δ) says of one record, or of one client, as a sentence."""
    hidden = "record: whether it is" if unit == "record" else "client: whether its records are"
    seen = "anything that clients sent" if unit == "record" else "any averaged models"
    factor = f"{math.ceil(math.exp(epsilon) * 10) / 10:.1f}" if epsilon < math.log(1000) else "more than a thousand"
    return (
        f"Any one {hidden} there or not changes the probability of {seen} at most by a factor of {factor}, which is "
        f"exp(ε), but for a probability of δ = {delta:g}."
    )
