"""All checks, one after the other."""

from typing import Any

from fedbnn.federation.engines import Engine
from fedbnn.federation.method import Method
from fedbnn.testing.halves import check_order, check_pure, check_states
from fedbnn.testing.replies import check_hostile_replies, check_replies
from fedbnn.testing.same_bits import check_resume, check_workers
from fedbnn.testing.sample import sample_sites
from fedbnn.testing.settings import check_settings


def check_method(method: Method[Any, Any], workers: Engine | None = None) -> None:
    """Every check of this room; an AssertionError by the first that fails.

    Settings that make the method fast make this fast. The class must be importable, at the top of a module, as runs
    need it. `workers` may be a pool that serves several such tests; otherwise one is started, which takes seconds.
    """
    check_settings(method)
    sites = sample_sites(method)
    for check in (check_replies, check_hostile_replies, check_pure, check_states, check_order, check_resume):
        check(method, sites)
    check_workers(method, sites, workers)
