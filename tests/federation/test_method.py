"""The contract refuses a method that lacks a declaration where it is written."""

from dataclasses import dataclass
from typing import Any

import pytest

from fedbnn.base.settings import settings
from fedbnn.federation.method import Method, State
from fedbnn.methods import FedAvg
from fedbnn.methods.averaging import Averaging, Relaxed, SharedPoint
from fedbnn.methods.point import Point


@dataclass(frozen=True)
class Nothing(State):
    pass


COMPLETE: dict[str, Any] = {"name": "whole", "summary": "a line", "client_state": Nothing, "server_state": Nothing}


@pytest.mark.parametrize("missing", COMPLETE)
def test_a_named_class_needs_every_declaration(missing: str) -> None:
    kept = {key: value for key, value in COMPLETE.items() if key != missing}
    halves = {name: lambda *_: None for name in Method.__abstractmethods__}
    with pytest.raises(TypeError, match=rf"Ours needs {missing} = \.\.\. ") as caught:
        type("Ours", (Method,), {**halves, **kept})
    assert "\n" not in str(caught.value)
    assert type("Ours", (Method,), {**halves, **COMPLETE}).name == "whole"


def test_a_class_that_is_named_but_not_whole_needs_its_states_too() -> None:
    with pytest.raises(TypeError, match=r"Early needs client_state"):
        type("Early", (Averaging,), {"name": "early", "summary": "halves are missing as well"})


@pytest.mark.parametrize("field", ["client_state", "server_state"])
@pytest.mark.parametrize("wrong", [dict, "Nothing", 3])
def test_a_state_must_be_a_class_of_states(field: str, wrong: Any) -> None:
    with pytest.raises(TypeError, match=field):
        type("Odd", (FedAvg,), {"name": "odd", field: wrong})


def test_bases_that_methods_share_need_no_name() -> None:
    class Base(Averaging[Point]):
        """Leaves the client's half to others."""

    @settings
    class Between(Relaxed[Point]):
        """So does this one, with a setting of its own."""

    @settings
    class Whole(SharedPoint, Base):
        name = "whole"
        summary = "both halves"

    assert Whole().client_state is Point
    assert Between.server_state is Whole.server_state


def test_a_whole_class_without_a_name_is_refused() -> None:
    with pytest.raises(TypeError, match="Nameless needs name"):
        type("Nameless", (SharedPoint, Averaging), {})
