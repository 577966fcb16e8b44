"""What the commands of `fedbnn privacy` print."""

import math
from collections.abc import Iterator, Sequence

from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from fedbnn.audit.configuration import AuditResult
from fedbnn.privacy.forecast import Forecast
from fedbnn.privacy.overview import Account, Overview, Shared
from fedbnn.report.privacy import rounded_up

_DROWNED = "Warning: the noise outweighs the signal even at best; next to nothing can be learned from a release."
_SHOWN = 12  # letters of a fingerprint


def forecast(found: Forecast) -> Group:
    """A plan: its noise, what is spent after each release, and what is left of the signal."""
    plan = found.plan
    facts = _table(("", ""), words=1)
    for name, value in (
        ("releases", f"{plan.releases:,}"),
        ("ε of all of them", f"{found.epsilon:,.3f}"),
        ("δ", f"{plan.delta:g}"),
        ("noise multiplier", _multiplier(plan.noise_multiplier)),
        ("noise on each number", f"{found.deviation:.5g}"),
        *_signal(found),
    ):
        facts.add_row(name, value)
    steps = _table(("after release", "ε spent"), words=0)
    for count, spent in found.spent:
        steps.add_row(f"{count:,}", f"{spent:,.3f}")
    words = (
        "Noise multiplier: standard deviation of the noise (told below it) over the most that one record changes a "
        "release; ε spent: by all releases up to this one; signal to noise, of one release: "
        f"{found.release.signal_means} over the length of its noise."
    )
    warning = [Text(_DROWNED, style="yellow")] if found.drowned else []
    return Group(Text(found.mechanism, style="bold"), facts, Text(), steps, Text(), Text(words), *warning)


def overview(found: Overview) -> Group:
    """A row for every ledger that can be read, and what its numbers mean."""
    table = _table(("owner", "records", "releases", "μ", "ε spent", "cap", "left"), words=2)
    for account in found.accounts:
        if not account.problem:
            table.add_row(*_row(account))
    words = (
        f"ε spent is at δ = {found.delta:g}, for one record, by all releases in the ledger; cap is the budget at the "
        "last charge, left is what remains of it, at its own δ; records are named by their fingerprint."
    )
    return Group(table, Text(words), *(Text(line) for line in _conclusions(found)))


def audit(found: AuditResult) -> Group:
    """What is claimed, what was proved against it, and what follows."""
    table = _table(("", "μ", "ε"), words=1)
    table.add_row("claimed, at most", f"{found.mu:.3f}", f"{found.epsilon:,.3f}")
    table.add_row("proved, at least", f"{found.mu_lower:.3f}", f"{found.epsilon_lower:,.3f}")
    words = (
        f"{found.mechanism}, ε at δ = {found.delta:g}, {found.trials:,} attacks with and without one record; the lower "
        f"bound holds with probability {found.confidence:g}."
    )
    verdict = (
        Text("The guarantee is refuted: one record shows more than it allows. Release nothing.", style="red")
        if found.caught
        else Text("Not refuted. That proves nothing: an audit can refute a guarantee, it cannot prove one.")
    )
    return Group(table, Text(words), verdict)


def epsilon(value: float) -> str:
    """Three decimals, rounded up."""
    return f"{rounded_up(value, 3):,.3f}"


def _table(columns: Sequence[str], words: int) -> Table:
    """So many columns of words, then columns of numbers; without headings if they are empty."""
    table = Table(box=None, pad_edge=False, show_header=any(columns))
    for at, name in enumerate(columns):
        table.add_column(name, justify="left" if at < words else "right", no_wrap=at > 0, overflow="fold")
    return table


def _multiplier(value: float) -> str:
    """Five digits, rounded up."""
    decimals = max(0, 4 - math.floor(math.log10(value)))
    return f"{rounded_up(value, decimals):,.{decimals}f}"


def _signal(found: Forecast) -> Iterator[tuple[str, str]]:
    at_most = ", at most" if found.release.at_most else ""
    yield f"signal to noise{at_most}", f"{found.one_client:.3g}"
    if found.all_clients is not None:
        yield f"of all {found.sizes.clients} clients together{at_most}", f"{found.all_clients:.3g}"


def _row(account: Account) -> tuple[str, ...]:
    cap, left = account.cap, account.left
    return (
        escape(account.owner),
        account.fingerprint[:_SHOWN],
        f"{account.releases:,}",
        f"{rounded_up(account.mu, 3):.3f}",
        epsilon(account.epsilon),
        "none" if cap is None else f"{cap.epsilon:g} at {cap.delta:g}",
        "" if left is None else f"{math.floor(left * 1000 + 1e-6) / 1000:,.3f}",
    )


def _conclusions(found: Overview) -> Iterator[str]:
    if found.epsilon is None:
        yield "What was spent in all is not known: not every ledger can be read."
    else:
        yield f"The most that any one record cost: ε {epsilon(found.epsilon)} at δ = {found.delta:g}."
    for certain, words in (
        (True, "the same records have several ledgers (unless one is a copy): they cost the sum of all of them"),
        (
            False,
            "a client has ledgers of several sets of records: a record in all of them costs the sum of all of them",
        ),
    ):
        groups = [shared for shared in found.shared if shared.certain is certain]
        if groups:
            yield f"Note: {words}, {_worst(groups)}."


def _worst(groups: list[Shared]) -> str:
    most = max(shared.epsilon for shared in groups)
    return f"ε {epsilon(most)}" if len(groups) == 1 else f"up to ε {epsilon(most)} ({len(groups)} cases)"
