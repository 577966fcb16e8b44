"""Which model a score belongs to: its name in a table and what that name means in plain words."""

from collections.abc import Sequence
from typing import Literal

Variant = Literal["personal", "general", "global", "global_own_prior", "fine_tuned"]
"""As result.json writes them."""

NAMES: dict[str, str] = {
    "personal": "personal",
    "general": "general",
    "global": "global",
    "global_own_prior": "global, own prior",
    "fine_tuned": "fine-tuned",
}
MEANINGS: dict[str, str] = {
    "personal": "the client's own model",
    "general": "the client's own model, asked with every class equally likely",
    "global": "the server's model, the same for all",
    "global_own_prior": "the server's model, asked with the client's own class shares",
    "fine_tuned": "the client's copy of the global model after its local training",
}
_SUBJECTS: dict[Variant, str] = {
    "personal": "a client's own model",
    "general": "a client's own model, asked with every class equally likely,",
    "global": "the global model, the same for all clients,",
    "global_own_prior": "the global model, asked with a client's own class shares,",
    "fine_tuned": "a client's copy of the global model, trained further on its own records,",
}


def subject(variant: Variant) -> str:
    """The model as the subject of a sentence about its accuracy."""
    return _SUBJECTS[variant]


def explained(variants: Sequence[str]) -> str:
    """What is scored, for the variants a page holds: one sentence, in the order of NAMES."""
    held = [variant for variant in NAMES if variant in variants]
    if not named(held):
        return "What is scored is the client's own model."
    names = NAMES | {"personal": "personal (also where no model is named)"}
    return f"What is scored: {'; '.join(f'{names[variant]}: {MEANINGS[variant]}' for variant in held)}."


def named(variants: Sequence[str]) -> bool:
    """Whether a method's models need a name beside its own: not where there is only the client's own."""
    return tuple(variants) != ("personal",)


def label(method: str, variants: Sequence[str]) -> str:
    """A method in a legend or over a chart, with the model that is shown of it."""
    return f"{method}, {NAMES[variants[0]]}" if named(variants) else method


def shown(methods: Sequence[Sequence[str]]) -> str:
    """Which model the charts of these methods are of; nothing where none of them has several."""
    if all(len(variants) == 1 for variants in methods):
        return ""
    if len(methods) == 1:
        return f"Shown is the {NAMES[methods[0][0]]} model."
    return "Of a method with several models the headline one is shown, which is named beside it."
