"""Does a method keep the contract? Checks that any method can be given, in any test framework or none.

    from fedbnn.testing import check_method

    def test_fedbabu():
        check_method(FedBABU())

A check that fails raises an AssertionError that says what is wrong and what to do.
"""

from fedbnn.testing.halves import check_order, check_pure, check_states
from fedbnn.testing.kit import check_method
from fedbnn.testing.replies import check_hostile_replies, check_replies
from fedbnn.testing.same_bits import check_resume, check_workers
from fedbnn.testing.sample import sample_sites
from fedbnn.testing.settings import check_settings

__all__ = [
    "check_hostile_replies",
    "check_method",
    "check_order",
    "check_pure",
    "check_replies",
    "check_resume",
    "check_settings",
    "check_states",
    "check_workers",
    "sample_sites",
]
