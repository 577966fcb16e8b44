"""What tests of whole runs share: a federation small enough to run in a tenth of a second."""

import pytest
from hypothesis import settings

# The same examples every time, and no opinion on how long one takes: time is measured in benchmarks/.
settings.register_profile("fedbnn", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("fedbnn")

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
