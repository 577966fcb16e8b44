"""Our own methods, and the example of one from outside, keep the contract."""

from typing import Any

import pytest
from fedbabu import FedBABU

from fedbnn.federation.engines import Engine
from fedbnn.federation.method import Method
from fedbnn.methods import METHODS
from fedbnn.testing import check_method
from tests.federation_sample import SMALL_METHODS, described


def test_the_sample_has_every_method() -> None:
    assert {method.name for method in SMALL_METHODS} == METHODS.keys()


@pytest.mark.parametrize("method", [*SMALL_METHODS, FedBABU()], ids=described)
def test_methods_keep_the_contract(method: Method[Any, Any], two_workers: Engine) -> None:
    check_method(method, two_workers)
