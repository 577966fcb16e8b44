"""The model card of an exported client (Mitchell et al. 2019): what it is, how good it is, what it is not for."""

from fedbnn.base.version import __version__
from fedbnn.deployment.card_words import plain, words_of
from fedbnn.deployment.loaded import LoadedRun
from fedbnn.federation.evaluation import MEASURES, task_scores
from fedbnn.report.figures import UNITS, show
from fedbnn.report.privacy import in_words
from fedbnn.report.schema import RegressionResult, Result
from fedbnn.report.table import markdown, row, table
from fedbnn.report.variants import MEANINGS


def model_card(run: LoadedRun, client: int, near: str | None) -> str:
    """Markdown. `near` says how near the mean network is to the client's own predictions; None: there is none."""
    site, config, words = run.site(client), run.config, words_of(run, client)
    kept = len(site.calibration) if site.calibration is not None else 0
    parts = [
        f"# Model card: {plain(site.client.name)}, {config.method_name} on {plain(run.data.dataset.name)}",
        f"Made by fedbnn {__version__} from the run folder `{plain(run.path.name)}` after round {run.round_number}.",
        "## Data",
        f"- Data set: {plain(run.data.dataset.name)}, sha256 `{run.data.dataset.fingerprint}`",
        *([words.target] if words.target else []),
        f"- Records of this client in training: {len(site.client.train)}{words.held}",
        f"- Records kept from all training for calibration: {kept}",
        f"- Inputs: {' x '.join(map(str, run.data.dataset.input_shape))} values a record, scaled by the mean and "
        f"deviation of {run.data.alignment_points} public alignment points",
        "## Method",
        f"- {config.method_name}: {type(config.chosen()).summary}",
        f"- Network: {plain(site.client.model.architecture)}, {site.weights:,} weights",
        f"- {run.data.n_clients} clients, {config.rounds} rounds planned, seed {config.seed}",
        "## Files",
        f"- `posterior.safetensors`: the client's whole state (`state.*`) and the scaling ({words.scaling}); what they "
        "are of stands in its metadata",
        *([] if near is None else [_network(words.network, near)]),
        *_scores(run, client),
        "## Intended use",
        words.use,
        "## Limits",
        "- Nothing is known of records that are unlike the alignment set; `fedbnn predict` flags them as foreign.",
        *words.limits,
        "- It is no device for diagnosis or for decisions about people, and was not tested as one.",
    ]
    return "\n\n".join(_lists(parts)) + "\n"


def _network(what: str, near: str) -> str:
    return (
        "- `model.onnx`: the network at the posterior mean, without a head on public features where the method has "
        f"one, {what} {near} No promise for the client's predictions holds for it."
    )


def _scores(run: LoadedRun, client: int) -> list[str]:
    if not (run.path / "result.json").exists():
        return ["## Scores", "The run is not finished: there are none.", "## Privacy", _OWN_MODEL]
    regression = run.config.data.regression
    result = (RegressionResult if regression else Result).model_validate(run.result)
    per = run.result["per_client"]
    rows = [
        row(MEASURES[name].heading, show(float(per[name][client]), UNITS[MEASURES[name].unit]), _meaning(name))
        for name in task_scores(regression=regression)
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


def _lists(parts: list[str]) -> list[str]:
    """Items that follow each other as one list."""
    joined: list[str] = []
    for part in parts:
        if part.startswith("- ") and joined and joined[-1].startswith("- "):
            joined[-1] += f"\n{part}"
        else:
            joined.append(part)
    return joined
