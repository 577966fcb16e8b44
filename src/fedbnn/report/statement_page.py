"""The page that somebody signs who answers for the records: a statement in tables and plain words."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from fedbnn.privacy.cost import Budget, Cost, total
from fedbnn.report.figures import MISSING, counted, listed
from fedbnn.report.page import environment
from fedbnn.report.privacy import rounded_down, rounded_up
from fedbnn.report.protection import meaning
from fedbnn.report.statement import RecordSet, Release, Run, Statement, Together
from fedbnn.report.table import Column, Row, Table, row, table
from fedbnn.report.trust import trusted

MOST_ROWS = 14
"""More releases than these are told a row for each run: the page shall stay one that is read before it is signed."""

_SHOWN = 16  # letters of a hash
UNKNOWN = "What was spent is not known: not every ledger can be read. Nothing may be signed but that."
_KEEP = (
    "This page is for the site's own files. Fingerprints and numbers of records come from the records without noise: "
    "whoever has all records but one could try out on them what the last one is."
)
_SERVERS = "Here the server adds the noise to averages over clients: these are the releases, and not what clients send."
_ONCE = (
    "Every number that was made from records is here, with noise; whatever else was sent in these runs was worked out "
    "from these numbers, or without records, and costs nothing more. A release that is charged but not done may not "
    "have left; it counts all the same."
)


def render(made: Statement) -> str:
    """The whole page as HTML."""
    context = {
        "statement": made,
        "facts": _facts(made),
        "lead": _lead(made),
        "warnings": _warnings(made),
        "sets": _sets(made),
        "releases": _releases(made),
        "once": [_SERVERS if unit == "client" else _ONCE for unit in sorted({group.unit for group in made.groups})],
        "runs": _runs(made),
        "guarantee": guarantee(made),
        "remaining": _remaining(made),
        "trusted": trusted(made),
        "keep": _KEEP,
    }
    return environment("fedbnn.report").get_template("statement.html.j2").render(context)


def as_data(made: Statement) -> dict[str, Any]:
    """Everything on the page, as data."""
    return {
        **made.to_dict(),
        "words": {
            "lead": _lead(made),
            "warnings": _warnings(made),
            "guarantee": guarantee(made),
            "trusted": [{"what": what, "for": list(words)} for what, words in trusted(made)],
            "keep": _KEEP,
        },
    }


def epsilon_text(value: float) -> str:
    """Three decimals, rounded up."""
    return f"{rounded_up(value, 3):,.3f}" if value < 1e6 else "more than a million"


def _facts(made: Statement) -> list[str]:
    ledgers = sum(len(group.sets) for group in made.groups) + len(made.broken)
    return [
        f"made {_time(made.made)} UTC",
        f"from {counted(ledgers, 'ledger')} in {made.folder}",
        f"fedbnn {made.fedbnn}",
    ]


def _lead(made: Statement) -> str:
    worst = made.worst
    if worst is None:
        return UNKNOWN
    releases = counted(sum(len(group.releases) for group in made.groups), "release")
    return (
        f"What left in {releases}, everything that the ledgers have, costs any one {worst.unit} at most "
        f"ε = {epsilon_text(worst.epsilon)} at δ = {made.delta:g}."
    )


def _warnings(made: Statement) -> list[str]:
    found = [f"A ledger cannot be believed. {problem}." for problem in made.broken]
    if made.unprotected:
        runs = listed([f"{run.name} (method {run.method}, mechanism {run.mechanism})" for run in made.unprotected])
        found.append(
            f"Not covered by anything on this page: {runs}. As far as this program can tell, their terms promise "
            "nothing about records; what was sent in them is in no ledger and has no noise."
        )
    return [*found, *made.notes]


def guarantee(made: Statement) -> list[str]:
    """What (ε, δ) say, in plain words."""
    worst = made.worst
    if worst is None:
        return [UNKNOWN]
    words = [meaning(worst.epsilon, made.delta, worst.unit)]
    best = rounded_up(100 * worst.best_guess, 1)
    words.append(
        f"Who knows all of the others, has seen all that it is about, and guesses whether one certain {worst.unit} is "
        f"there, where both were equally likely, is right in at most {best:.1f} of 100 cases, now or later. A blind "
        "guess is right in 50."
    )
    if worst.if_joined is not None:
        words.append(
            f"Sums were added up so that only the total over sites can be seen. ε = {epsilon_text(worst.epsilon)} is "
            f"what holds if that fails; as long as it holds, ε = {epsilon_text(worst.if_joined)}."
        )
    for group in made.groups:
        if len(group.sets) > 1:
            names = listed([one.fingerprint[:_SHOWN] for one in group.sets])
            words.append(f"Counted together, as they {'are seen to' if group.seen else 'may'} share records: {names}.")
    if worst.of_two_records is not None and worst.unit == "record" and worst.releases:
        words.append(f"A person with two records is protected at ε = {epsilon_text(worst.of_two_records)}.")
    return words


def _sets(made: Statement) -> Table:
    rows = [
        row(one.owner, one.fingerprint[:_SHOWN], _count(one, group), f"{one.releases:,}", _time(one.began))
        for group in made.groups
        for one in group.sets
    ]
    columns = [
        Column("owner", words=True),
        Column("fingerprint", words=True, style="key"),
        Column("records"),
        Column("releases"),
        Column("ledger since"),
    ]
    return Table(columns, rows)


def _releases(made: Statement) -> Table:
    number = sum(len(group.releases) for group in made.groups)
    several = sum(len(group.sets) for group in made.groups) > 1
    rows = [one for group in made.groups for one in (_folded(group) if number > MOST_ROWS else _each(group))]
    columns = [
        Column("time (UTC)", words=True),
        Column("run", words=True, style="value"),
        Column("from records", words=True, style="key"),
        Column("cost of it", words=True, style="value"),
        Column("its ε"),
        Column("ε after it"),
        Column("state", words=True),
        Column("SHA-256 of the numbers", words=True, style="key"),
    ]
    return _without(2, Table(columns, rows)) if not several else Table(columns, rows)


def _each(group: Together) -> Iterator[Row]:
    for release in group.releases:
        yield row(
            _time(release.charge.time),
            _run(release),
            release.fingerprint[:_SHOWN],
            cost_text(release.charge.cost),
            epsilon_text(release.alone),
            epsilon_text(release.after),
            "done" if release.done else "charged",
            (release.charge.sha256 or MISSING)[:_SHOWN],
        )


def _folded(group: Together) -> Iterator[Row]:
    """A row for the releases of one run from one set of records that follow on each other."""
    for _, found in groupby(group.releases, lambda release: (release.charge.run, release.fingerprint)):
        releases = list(found)
        first, last = releases[0], releases[-1]
        cost = total(release.charge.cost for release in releases)
        done = sum(release.done for release in releases)
        yield row(
            _time(first.charge.time) if first is last else f"{_time(first.charge.time)} to {_time(last.charge.time)}",
            _run(first),
            first.fingerprint[:_SHOWN],
            f"{counted(len(releases), 'release')}, {cost_text(cost)}",
            epsilon_text(cost.epsilon(group.delta)),
            epsilon_text(last.after),
            "done" if done == len(releases) else f"{done:,} done",
            "in statement.json",
        )


def cost_text(cost: Cost) -> str:
    """What is added up, rounded up."""
    parts = [f"μ = {rounded_up(cost.mu, 4):,.4f}"] if cost.mu or not cost.sampled else []
    for noise, rate, steps in cost.sampled:
        parts.append(f"{counted(steps, 'step')} at noise {noise:.4g}, sampling {rate:.4g}")
    return "; ".join(parts)


def _remaining(made: Statement) -> Table:
    rows = []
    for group in made.groups:
        for one in group.sets:
            left = MISSING if one.left is None else f"{rounded_down(one.left, 3):,.3f}"
            rows.append(row(one.fingerprint[:_SHOWN], epsilon_text(group.epsilon), _budget(one.cap), left))
    found = table(["records", f"ε spent at δ = {made.delta:g}", "cap", "ε left, at the cap's δ"], rows)
    return Table([Column("records", words=True, style="key"), *found.columns[1:]], found.rows)


def _runs(made: Statement) -> list[tuple[str, str, list[str]]]:
    """Runs by what was sent in them: their names, that, and what else is known of each."""
    charged = {release.charge.run for group in made.groups for release in group.releases}
    by_words: dict[str, list[Run]] = {}
    for run in made.runs:
        if run not in made.unprotected:
            by_words.setdefault(run.sent, []).append(run)
    return [
        (listed([run.name for run in runs]), sent, [_about(run, run.digest in charged) for run in runs])
        for sent, runs in by_words.items()
    ]


def _about(run: Run, charged: bool) -> str:
    """What is known of a run besides what was sent."""
    how = f" with {run.mechanism}" if run.mechanism != "none" else ""
    parts = [f"{run.name}: {run.method}{how}", counted(run.rounds, "round")]
    if run.secure:
        parts.append("secure aggregation")
    if run.promise is not None:
        parts.append(f"of its own at most ε = {_budget(run.promise)}")
    if run.alignment:
        parts.append(f"alignment set {run.alignment} (SHA-256 {run.sha256[:_SHOWN]})")
    if not charged:
        parts.append("nothing charged")
    return ", ".join(parts)


def _run(release: Release) -> str:
    if release.run is not None:
        return release.run.name
    return f"terms {release.charge.run[:12]}, not at hand" if release.charge.run else "not told"


def _count(one: RecordSet, group: Together) -> str:
    if one.records is None:
        return MISSING
    return f"{one.records:,}" if group.unit == "record" else counted(one.records, group.unit)


def _budget(budget: Budget | None) -> str:
    return "none" if budget is None else f"{budget.epsilon:g} at δ = {budget.delta:g}"


def _time(text: str) -> str:
    """To the minute, as far as it is written as ledgers do."""
    return text[:16].replace("T", " ")


def _without(column: int, found: Table) -> Table:
    def rest(cells: Sequence[Any]) -> list[Any]:
        return [cell for at, cell in enumerate(cells) if at != column]

    return Table(rest(found.columns), [Row(rest(one.cells), one.kind) for one in found.rows])
