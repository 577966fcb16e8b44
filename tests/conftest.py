"""What tests share: a federation small enough to run in a tenth of a second, and worker processes."""

import os
import tempfile
from contextlib import closing

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from fedbnn import *  # noqa: F403, the constants of all it loads are among those that examples are drawn from

# The same examples every time, and no opinion on how long one takes: time is measured in benchmarks/.
settings.register_profile("fedbnn", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("fedbnn")


def _fits(place):
    """Whether a folder in memory takes all that tests write, scripts among it."""
    try:
        found = os.statvfs(place)
    except OSError:
        return False
    room = found.f_bavail * found.f_frsize > 2 * 2**30
    return room and not found.f_flag & os.ST_NOEXEC and os.access(place, os.W_OK)


# Ledgers and run folders are on disk before the next step, for which a test would wait thousands of times.
if "TMPDIR" not in os.environ and _fits("/dev/shm"):
    os.environ["TMPDIR"] = "/dev/shm"
    tempfile.tempdir = None


@pytest.hookimpl(trylast=True)
def pytest_sessionstart():
    """Fix the constants of the project's modules that Hypothesis tries: those of what `import fedbnn` loads.

    They would be those of all modules loaded so far, which depends on what a worker ran before.
    """
    constants = providers._get_local_constants()
    providers._get_local_constants = lambda: constants


TINY = (
    "rounds=2",
    "partition.clients=3",
    "training.warmup_epochs=2",
    "training.local_epochs=1",
    "data.alignment=20",
    "methods.fedbnn.prior_steps=2",
    "methods.fedbnn.mc_samples=2",
    "methods.fedbnn_paper.prior_steps=2",
    "methods.fedbnn_paper.mc_samples=2",
    "methods.fedmd.digest_steps=2",
    "engine.debug=true",
    'models=[{name="mlp"}]',
)


@pytest.fixture(scope="session")
def tiny():
    """Overrides, as `load_config` and `--set` take them."""
    return TINY


@pytest.fixture(scope="session")
def one_worker():
    with closing(WorkerPool(1)) as pool:  # noqa: F405
        yield pool


@pytest.fixture(scope="session")
def two_workers():
    """One pool for one federation after the other: a worker takes seconds to start, and nothing of a run stays in it.

    Whoever kills workers, or lets them fail, takes a pool of his own.
    """
    with closing(WorkerPool(2)) as pool:  # noqa: F405
        yield pool
