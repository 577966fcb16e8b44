"""When the pen of a run saves states."""

from pathlib import Path

import pytest

from fedbnn.federation.loop import Round
from fedbnn.runs.experiment import Prepared
from fedbnn.runs.folder import RunFolder
from fedbnn.runs.journal import Journal
from fedbnn.runs.observer import Observer
from tests.deployment.deployment_sample import small_config


@pytest.mark.parametrize(("every", "saved"), [(None, 2), (1, 3)])
def test_states_are_saved_as_configured_or_as_the_driver_needs(every: int | None, saved: int, tmp_path: Path) -> None:
    """Sites on Flower save theirs after every round and refuse an earlier one: so must the server."""
    config = small_config("fedbnn", "rounds=9", "checkpoint_every=2", "evaluation.every=100")
    prepared = Prepared.of(config, ["fedbnn"])
    folder = RunFolder.open(tmp_path / "run", config.to_json(), prepared.manifest, resume=False)
    journal = Journal(config, prepared.data, prepared.sites, folder, Observer())
    for number in range(4):
        journal.keep(Round(number, {}), lambda place: (place / "state").write_text("x"), every)
    found = folder.latest_checkpoint()
    assert found is not None
    assert found.round_number == saved
