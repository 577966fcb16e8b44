"""Whom to trust for what, if a statement is to mean what it says: every assumption, and what is not covered at all."""

from fedbnn.report.statement import Statement, Unit

Lines = tuple[tuple[str, tuple[str, ...]], ...]
"""Headings, each with its sentences."""

_OWN = (
    "It holds the records, the personal model and the ledgers, and draws the noise from the operating system. Who gets "
    "into it sees everything."
)
_SOFTWARE = (
    "That what is installed is this software, unchanged; “fedbnn privacy audit” can refute its claims, not prove them."
)
_SERVER = (
    "Nothing. ε holds also if all of them work together, choose what they ask for, and keep what they got for ever."
)
_TRUSTED_SERVER = (
    "Here the server adds the noise: it sees what every client sends, and is trusted with it. ε holds against all "
    "others, and for whole clients."
)
_PUBLIC = "It is public, was chosen without looking at the records, and is not protected."
_PERSON = "ε is for one record. A person with several is protected less, unless one record was made of them."
_LEDGERS = (
    "All of them are in the folder above; none was deleted, or put back from an older copy, and only this software "
    "released from these records. Hashes show accidents, not the hand of the folder's owner."
)
_CHANNEL = (
    "Who listens on the way learns no more than the server. That the server is the right one is up to keys and "
    "certificates."
)
_SIDE = (
    "How long the site takes, and whether it answers at all, is not covered; nor is who takes part, when, under which "
    "name and with which architecture."
)
_MODEL = (
    "It is trained without noise and never leaves. Its predictions are not covered: who is shown them can learn more "
    "than ε says."
)
_SUMS = (
    "That fewer sites than agreed work with the server, and that keys are whose they claim to be. If not, the larger "
    "ε holds, which is the one that is charged."
)


def trusted(made: Statement) -> Lines:
    units = {group.unit for group in made.groups}
    lines = [
        ("The site's own computer", (_OWN,)),
        ("This software", (_SOFTWARE,)),
        ("The server and other sites", tuple(_server(units))),
        ("The alignment set", (_PUBLIC,)),
        ("One record a person", (_PERSON,)),
        ("One record, one site", (_multiplicity(made),)),
    ]
    if made.declared and made.declared.disjoint:
        lines.append(
            (
                "Different people",
                (
                    "The site declares that its sets of records are of different people. What remains is told for each "
                    "set by itself, and for those that are seen to share records together; ε spent is that of a "
                    "person who is in all of them.",
                ),
            )
        )
    lines += [("The ledgers", (_LEDGERS,)), ("The way to the server", (_CHANNEL,))]
    if any(group.if_joined is not None for group in made.groups):
        lines.append(("Secure aggregation", (_SUMS,)))
    return (*lines, ("Time and silence", (_SIDE,)), ("The personal model", (_MODEL,)))


def _server(units: set[Unit]) -> list[str]:
    words = [_TRUSTED_SERVER] if "client" in units else []
    return words if units == {"client"} else [_SERVER, *words]


def _multiplicity(made: Statement) -> str:
    if made.declared is None:
        return "What several sites hold costs more; each charge contains the number of sites that was declared then."
    if made.declared.multiplicity == 1:
        return "The site declares that no other site holds the same record. If another does, both sites' costs add up."
    return (
        f"The site declares that at most {made.declared.multiplicity} sites hold the same record, itself included; "
        "charges contain that."
    )
