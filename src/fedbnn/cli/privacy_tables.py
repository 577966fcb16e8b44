"""What the commands of `fedbnn privacy` print."""

import math
from collections.abc import Iterator

from rich.console import Group
from rich.text import Text

from fedbnn.audit.configuration import AuditResult
from fedbnn.cli.tables import Printed
from fedbnn.privacy.forecast import Forecast
from fedbnn.privacy.overview import Entry, Overview, Shared
from fedbnn.report.privacy import rounded_down, rounded_up
from fedbnn.report.table import Row, row, table

_DROWNED = "Warning: the noise outweighs the signal even at best; next to nothing can be learned from a release."
_SHOWN = 12  # letters of a fingerprint


def forecast(planned: Forecast) -> Group:
    """A plan: its noise, what is spent after each release, and what is left of the signal."""
    plan = planned.plan
    facts = (
        ("releases", f"{plan.releases:,}"),
        ("ε of all of them", f"{planned.epsilon:,.3f}"),
        ("δ", f"{plan.delta:g}"),
        ("noise multiplier", _multiplier(plan.noise_multiplier)),
        ("noise on each number", f"{planned.deviation:.5g}"),
        *_signal(planned),
    )
    steps = [row(f"{count:,}", f"{spent:,.3f}") for count, spent in planned.spent]
    words = (
        "Noise multiplier: standard deviation of the noise (told below it) over the most that one record changes a "
        "release; ε spent: by all releases up to this one; signal to noise, of one release: "
        f"{planned.release.signal_means} over the length of its noise."
    )
    warning = [Text(_DROWNED, style="yellow")] if planned.drowned else []
    return Group(
        Text(planned.mechanism, style="bold"),
        Printed(table(["", ""], [row(*fact) for fact in facts])),
        Text(),
        Printed(table(["after release", "ε spent"], steps, words=0)),
        Text(),
        Text(words),
        *warning,
    )


def overview(ledgers: Overview) -> Group:
    """A row for every ledger that can be read, and what its numbers mean."""
    titles = ["owner", "records", "releases", "ε spent", "cap", "left"]
    rows = table(titles, [_row(entry) for entry in ledgers.entries if not entry.problem], words=2)
    words = (
        f"ε spent is at δ = {ledgers.delta:g}, for one record, by all releases in the ledger; cap is the budget at the "
        "last charge, left is what remains of it, at its own δ; records are named by their fingerprint."
    )
    return Group(Printed(rows), Text(words), *(Text(line) for line in _conclusions(ledgers)))


def audit(result: AuditResult) -> Group:
    """What is claimed, what was proved against it, and what follows."""
    rows = [
        row("claimed, at most", f"{result.mu:.3f}", f"{result.epsilon:,.3f}"),
        row("proved, at least", f"{result.mu_lower:.3f}", f"{result.epsilon_lower:,.3f}"),
    ]
    words = (
        f"{result.mechanism}, releases: {result.releases:,}; ε at δ = {result.delta:g}; {result.trials:,} attacks with "
        f"or without one record in {result.seconds / 60:.1f} minutes prove {result.mu_lower / result.mu:.0%} of the "
        f"claimed μ; the lower bound holds with probability {result.confidence:g}."
    )
    verdict = (
        Text("The guarantee is refuted: one record shows more than it allows. Release nothing.", style="red")
        if result.caught
        else Text("Not refuted. That proves nothing: an audit can refute a guarantee, it cannot prove one.")
    )
    return Group(Printed(table(["", "μ", "ε"], rows)), Text(words), verdict)


def epsilon(value: float) -> str:
    """Three decimals, rounded up."""
    return f"{rounded_up(value, 3):,.3f}" if value < 1e6 else "more than a million"


def _multiplier(value: float) -> str:
    """Five digits, rounded up."""
    decimals = max(0, 4 - math.floor(math.log10(value)))
    return f"{rounded_up(value, decimals):,.{decimals}f}"


def _signal(planned: Forecast) -> Iterator[tuple[str, str]]:
    at_most = ", at most" if planned.release.at_most else ""
    yield f"signal to noise{at_most}", f"{planned.one_client:.3g}"
    if planned.all_clients is not None:
        yield f"of all {planned.sizes.clients} clients together{at_most}", f"{planned.all_clients:.3g}"


def _row(entry: Entry) -> Row:
    cap, left = entry.cap, entry.left
    return row(
        entry.owner,
        entry.fingerprint[:_SHOWN],
        f"{entry.releases:,}",
        epsilon(entry.epsilon),
        "none" if cap is None else f"{cap.epsilon:g} at {cap.delta:g}",
        "" if left is None else f"{rounded_down(left, 3):,.3f}",
    )


def _conclusions(ledgers: Overview) -> Iterator[str]:
    if ledgers.epsilon is None:
        yield "What was spent in all is not known: not every ledger can be read."
    else:
        yield f"The most that any one record cost: ε {epsilon(ledgers.epsilon)} at δ = {ledgers.delta:g}."
    for certain, words in (
        (True, "the same records have several ledgers (unless one is a copy): they cost the sum of all of them"),
        (
            False,
            "a client has ledgers of several sets of records: a record in all of them costs the sum of all of them",
        ),
    ):
        groups = [shared for shared in ledgers.shared if shared.certain is certain]
        if groups:
            yield f"Note: {words}, {_worst(groups)}."


def _worst(groups: list[Shared]) -> str:
    most = max(shared.epsilon for shared in groups)
    return f"ε {epsilon(most)}" if len(groups) == 1 else f"up to ε {epsilon(most)} ({len(groups)} cases)"
