"""What a method keeps at a client and puts on the wire, as its own declarations say."""

from dataclasses import dataclass, fields

import torch

from fedbnn.federation.parties import Roster
from fedbnn.methods.registry import MethodClass
from fedbnn.models.architectures import ModelSettings


@dataclass(frozen=True)
class Wire:
    """Of a method with its default settings, on a small classification federation.

    Attributes:
        keeps: the fields of a client's state, which never leave it as such.
        sends: the arrays of a client's reply.
        mixed: whether clients may have different architectures.

    """

    keeps: tuple[str, ...]
    sends: tuple[str, ...]
    mixed: bool


def wire_of(cls: MethodClass) -> Wire:
    """What a method declares about its client's state and reply."""
    roster = Roster(
        names=("one", "two"),
        classes=3,
        alignment=torch.zeros(4, 1, 8, 8),
        models=(ModelSettings("mlp", options={"hidden": [4]}),) * 2,
        rounds=1,
        seed=0,
    )
    sent = tuple(cls().expected_upload(roster, 0))
    return Wire(tuple(field.name for field in fields(cls.client_state)), sent, not cls.one_architecture)
