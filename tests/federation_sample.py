"""A federation small enough for tests: digits, a few clients, three architectures."""

from fedbnn.data import DataSettings, PartitionSettings, federate, load_dataset
from fedbnn.engines import Site
from fedbnn.methods import FedBNN, FedMD, Local, LocalBNN
from fedbnn.sites import make_sites
from fedbnn.training import TrainingSettings

SMALL_METHODS = (
    FedBNN(prior_steps=3, mc_samples=2),
    FedBNN(prior_steps=3, mc_samples=2, consensus="sharpened"),
    FedBNN(prior_steps=3, mc_samples=2, consensus="corrected", weights="data"),
    FedMD(digest_steps=3),
    LocalBNN(mc_samples=2),
    Local(),
)


def small_sites(
    clients: int = 4, seed: int = 0, models: tuple[str, ...] = ("mlp", "cnn2", "cnn3"), batch_size: int = 16
) -> list[Site]:
    data = DataSettings(alignment=30)
    partition = PartitionSettings(clients=clients, classes_per_client=3, records_per_class=4)
    training = TrainingSettings(local_epochs=1, warmup_epochs=2, batch_size=batch_size)
    return make_sites(federate(load_dataset(data), data, partition, seed), models, training, seed=seed)
