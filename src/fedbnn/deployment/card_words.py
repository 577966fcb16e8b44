"""What a model card says otherwise in classification and in regression."""

from dataclasses import dataclass

import numpy as np

from fedbnn.deployment.loaded import LoadedRun
from fedbnn.models.regression.measured import FLOOR
from fedbnn.models.regression.scale import Scale

_BY = "by `fedbnn predict` on the run folder."


@dataclass(frozen=True)
class Words:
    """Of one task, about one client.

    Attributes:
        target: what is predicted, as an item of a list; empty where the records' line says it.
        held: what follows the number of records in training.
        scaling: names of the numbers by which inputs and targets are scaled, in the posterior's file.
        network: from what to what the mean network goes, and what it does not tell.
        use: what the model is for.
        limits: what it does not tell or promise, as items.

    """

    target: str
    held: str
    scaling: str
    network: str
    use: str
    limits: tuple[str, ...]


def words_of(run: LoadedRun, client: int) -> Words:
    """Those of the run's task."""
    scale = run.data.dataset.scale
    return _of_classes(run, client) if scale is None else _of_numbers(run.config.data.target, scale)


def _of_classes(run: LoadedRun, client: int) -> Words:
    counts = np.bincount(run.site(client).client.train.y.numpy(), minlength=len(run.class_names))
    held = ", ".join(f"{plain(name)} ({count})" for name, count in zip(run.class_names, counts, strict=True) if count)
    return Words(
        target="",
        held=f": {held}",
        scaling="`input.*`",
        network="from unscaled values to probabilities. It tells no uncertainty.",
        use=f"Class probabilities for records like those of this client, with their uncertainty, {_BY} Decide by sets "
        "of classes (`--alpha`) and abstention (`--abstain-risk`), not by probabilities.",
        limits=(
            "- Probabilities stand under a prior over labels. Where classes are more or less common, ask with "
            "`--prior`.",
        ),
    )


def _of_numbers(target: str, scale: Scale) -> Words:
    name = plain(target) or "the target"
    return Words(
        target=f"- Target: {f'{name}, ' if target else ''}a real number, here and in predictions in its own unit. "
        f"Models learn ({name} - {scale.mean}) / {scale.sd}, by two declared numbers",
        held="",
        scaling="`input.*`, `target.*`",
        network="from unscaled values to `mean` and `sd` of the target in its own unit. This `sd` is of noise in the "
        "data alone: it does not tell what the client is unsure of for lack of records.",
        use=f"Mean and standard deviation of {name} for records like those of this client, {_BY} Decide by intervals "
        "with a promise (`--alpha`), not by the deviation: it is as good as the model.",
        limits=(
            "- Coverage is of all scored records together: it is no promise for new ones, nor for a group of them.",
            "- What is predicted is a Gaussian or a mixture of some. It may reach where no target can be, and tells no "
            f"noise below {FLOOR**0.5 * scale.sd:.4g}.",
        ),
    )


def plain(text: str) -> str:
    """A name from anybody's file, as one line that Markdown takes literally."""
    return "".join(f"\\{sign}" if sign in "\\`*_[]<>#|" else sign for sign in " ".join(text.split()))
