"""What a method declares about its state and its replies is what its halves do."""

from typing import Any

import pytest

from fedbnn.federation.method import Method
from fedbnn.methods.wire import wire_of
from fedbnn.testing.sample import moments, sample_sites
from tests.federation_sample import SMALL_METHODS, described


@pytest.mark.parametrize("method", SMALL_METHODS, ids=described)
def test_replies_hold_what_is_declared(method: Method[Any, Any]) -> None:
    wire = wire_of(type(method))
    sites = sample_sites(method)
    assert wire.mixed == (len({site.client.model.name for site in sites}) > 1)
    for moment in moments(method, sites):
        sent = [set(reply.arrays) for reply in moment.replies.values()]
        assert set().union(*sent) == set(wire.sends)  # who has nothing in common with others may send less
        for state in moment.after.values():
            assert set(state.tensors()) <= set(wire.keeps)
