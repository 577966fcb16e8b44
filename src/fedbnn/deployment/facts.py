"""Whether facts leave a site beside the arrays: scores and diagnostics, on which there is no noise."""

from pathlib import Path

from fedbnn.base.errors import UserError
from fedbnn.data import federate, load_dataset
from fedbnn.deployment.site_file import RecordsSettings, SiteSettings
from fedbnn.deployment.terms import Terms
from fedbnn.runs.config import Config


def facts_leave(config: Config) -> bool:
    """Whether a site that says nothing about it sends them, under the terms of this configuration."""
    site = SiteSettings(name="site", data=RecordsSettings(path=Path("records.npz")))
    data = federate(load_dataset(config.data), config.data, config.partition, config.seed)
    try:
        terms = Terms.of(config, data, "audit")
    except UserError:  # such a run has no sites: what is learned in it stays on one machine
        return False
    return site.shares(terms)
