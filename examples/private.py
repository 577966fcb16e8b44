"""A budget for every record: what is spent, what a second run costs, and what is refused.

Six clients with handwritten digits release outputs of a small model that was trained with noise. Their ledgers keep
account in a folder that outlives runs. About ten seconds.
"""

import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import fedbnn
from fedbnn.privacy.overview import overview


def run(data: fedbnn.FederatedData, privacy: fedbnn.PrivacySettings, ledgers: Path, rounds: int) -> None:
    """A federation whose clients release under `privacy`, each on account of its own ledger."""
    training = fedbnn.TrainingSettings(warmup_epochs=5, local_epochs=2)
    sites = fedbnn.make_sites(data, ["mlp"], training, rounds=rounds, privacy=privacy, ledgers=ledgers)
    federation = fedbnn.Federation(fedbnn.FedMD(digest_steps=20), sites)
    federation.run(rounds)
    federation.close()


def show(what: str, ledgers: Path) -> None:
    """What the ledgers say, as `fedbnn privacy spent` does."""
    entries = overview(ledgers, delta=1e-5).entries
    worst = max(entries, key=lambda entry: entry.epsilon)
    print(f"{what}: {len(entries)} ledgers, {worst.releases} release each, ", end="")
    print(f"spent {worst.epsilon:.3f}, left {worst.left:.3f}")


def main(ledgers: Path) -> None:
    """Spend a budget of epsilon 3 once, and try to spend more."""
    settings = fedbnn.DataSettings(alignment=200)
    partition = fedbnn.PartitionSettings(clients=6, classes_per_client=5, records_per_class=8)
    data = fedbnn.federate(fedbnn.load_dataset(settings), settings, partition, seed=0)
    privacy = fedbnn.PrivacySettings(mechanism="dp_teacher", epsilon=3.0, delta=1e-5)

    run(data, privacy, ledgers, rounds=2)
    show("after two rounds", ledgers)
    run(data, privacy, ledgers, rounds=4)  # the same question: the stored answer, for nothing
    show("after another run", ledgers)
    try:
        run(data, replace(privacy, dimensions=50), ledgers, rounds=2)  # another question would cost again
    except fedbnn.UserError as error:
        print(f"refused: {error}")
    show("after the refusal", ledgers)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))  # a folder that is kept as long as the records are
    else:
        with TemporaryDirectory() as folder:
            main(Path(folder))
