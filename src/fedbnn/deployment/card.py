"""The model card of an exported client (Mitchell et al. 2019): what it is, how good it is, what it is not for."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from fedbnn.base.version import __version__
from fedbnn.deployment.loaded import LoadedRun
from fedbnn.federation.evaluation import MEASURES, SCORES
from fedbnn.models.regression import of_classes
from fedbnn.report.figures import UNITS, show
from fedbnn.report.privacy import in_words
from fedbnn.report.schema import Result
from fedbnn.report.table import markdown, row, table
from fedbnn.report.variants import MEANINGS


@dataclass(frozen=True)
class Agreement:
    """How the mean network compares with the client's own predictions, on the test records that are its concern.

    Of an unscored client, which has none, on the public alignment set.
    """

    records: int
    kind: str  # of records
    same: float  # share of records with the same class
    apart: float  # mean absolute difference of the probabilities

    @classmethod
    def of(cls, run: LoadedRun, client: int, network: nn.Module) -> "Agreement":
        own = run.data.own_mask(client, "test")
        x, kind = run.data.dataset.x_test[own], "test records"
        if not own.any():
            x, kind = run.data.loaded_alignment, "public alignment points"
        full = of_classes(run.predict(client, x).prediction).probs
        with torch.inference_mode():
            mean = network(torch.from_numpy(x))
        same = float((full.argmax(1) == mean.argmax(1)).double().mean())
        return cls(len(x), kind, same, float((full - mean).abs().double().mean()))


def model_card(run: LoadedRun, client: int, agreement: Agreement | None) -> str:
    """Markdown."""
    site, config = run.site(client), run.config
    counts = np.bincount(site.client.train.y.numpy(), minlength=len(run.class_names))
    held = ", ".join(f"{_plain(name)} ({count})" for name, count in zip(run.class_names, counts, strict=True) if count)
    kept = len(site.calibration) if site.calibration is not None else 0
    parts = [
        f"# Model card: {_plain(site.client.name)}, {config.method_name} on {_plain(run.data.dataset.name)}",
        f"Made by fedbnn {__version__} from the run folder `{_plain(run.path.name)}` after round {run.round_number}.",
        "## Data",
        f"- Data set: {_plain(run.data.dataset.name)}, sha256 `{run.data.dataset.fingerprint}`",
        f"- Records of this client in training: {len(site.client.train)}: {held}",
        f"- Records kept from all training for calibration: {kept}",
        f"- Inputs: {' x '.join(map(str, run.data.dataset.input_shape))} values a record, scaled by the mean and "
        f"deviation of {run.data.alignment_points} public alignment points",
        "## Method",
        f"- {config.method_name}: {type(config.chosen()).summary}",
        f"- Network: {_plain(site.client.model.architecture)}, {site.weights:,} weights",
        f"- {run.data.n_clients} clients, {config.rounds} rounds planned, seed {config.seed}",
        *_files(agreement),
        *_scores(run, client),
        "## Intended use",
        "Class probabilities for records like those of this client, with their uncertainty, by `fedbnn predict` on the "
        "run folder. Decide by sets of classes (`--alpha`) and abstention (`--abstain-risk`), not by probabilities.",
        "## Limits",
        "- Nothing is known of records that are unlike the alignment set; `fedbnn predict` flags them as foreign.",
        "- Probabilities stand under a prior over labels. Where classes are more or less common, ask with `--prior`.",
        "- It is no device for diagnosis or for decisions about people, and was not tested as one.",
    ]
    return "\n\n".join(_lists(parts)) + "\n"


def _files(agreement: Agreement | None) -> list[str]:
    lines = [
        "## Files",
        "- `posterior.safetensors`: the client's whole state (`state.*`) and the scaling (`input.*`); what they are of "
        "stands in its metadata",
    ]
    if agreement is None:
        return lines
    return [
        *lines,
        f"- `model.onnx`: the network at the posterior mean, from unscaled values to probabilities. It tells no "
        f"uncertainty. On {agreement.records} {agreement.kind} it names the class that the client itself names on "
        f"{agreement.same:.1%}; probabilities differ by {agreement.apart:.3f} on average. No promise for the client's "
        "predictions holds for it.",
    ]


def _scores(run: LoadedRun, client: int) -> list[str]:
    if not (run.path / "result.json").exists():
        return ["## Scores", "The run is not finished: there are none.", "## Privacy", _OWN_MODEL]
    result = Result.model_validate(run.result)
    per = run.result["per_client"]
    rows = [
        row(MEASURES[name].heading, show(float(per[name][client]), UNITS[MEASURES[name].unit]), _meaning(name))
        for name in SCORES
        if name in per and per[name][client] is not None
    ]
    told = [
        f"On the {result.split} records, of {MEANINGS[result.scored]}:",
        markdown(table(["score", "this client", "meaning"], rows)),
    ]
    sends = result.bytes_up_per_client_round != 0
    return [
        "## Scores",
        *(told if rows else [f"This client is unscored: it has no {result.split} records of its own."]),
        "## Privacy",
        f"{in_words(result.guarantee, sends)} {_OWN_MODEL}",
    ]


def _meaning(name: str) -> str:
    """Whatever classes this client holds."""
    return "on all records that are scored" if name.startswith("all_class") else MEASURES[name].meaning


_OWN_MODEL = (
    "That is about what left the client in the run. These files are another matter: they hold what the client learned "
    "from its records, and who gets them can learn about these. Give them only to those who may see the records, "
    "unless the guarantee covers this very model."
)


def _plain(text: str) -> str:
    """A name from anybody's file, as one line that Markdown takes literally."""
    return "".join(f"\\{sign}" if sign in "\\`*_[]<>#|" else sign for sign in " ".join(text.split()))


def _lists(parts: list[str]) -> list[str]:
    """Items that follow each other as one list."""
    joined: list[str] = []
    for part in parts:
        if part.startswith("- ") and joined and joined[-1].startswith("- "):
            joined[-1] += f"\n{part}"
        else:
            joined.append(part)
    return joined
