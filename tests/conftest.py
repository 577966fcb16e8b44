"""What tests of whole runs share: a federation small enough to run in a tenth of a second."""

import pytest

TINY = (
    "rounds=2",
    "partition.clients=3",
    "training.warmup_epochs=2",
    "training.local_epochs=1",
    "data.alignment=20",
    "methods.fedbnn.prior_steps=2",
    "methods.fedbnn.mc_samples=2",
    "methods.fedmd.digest_steps=2",
    "engine.debug=true",
    'models=[{name="mlp"}]',
)


@pytest.fixture(scope="session")
def tiny():
    """Overrides, as `load_config` and `--set` take them."""
    return TINY


def pytest_configure(config):
    # typer imports names that click 8.5 has deprecated; nothing of ours can change that.
    config.addinivalue_line("filterwarnings", "ignore:.*removed in Click 9:DeprecationWarning")
