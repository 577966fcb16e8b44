"""Mechanisms that protect the exchange of outputs, one file each: a file that is put here is known by its name."""

import importlib
import pkgutil

from fedbnn.methods.mechanisms.mechanism import ExchangeMechanism
from fedbnn.privacy import PrivacySettings
from fedbnn.privacy.mechanism import MECHANISMS

for _module in pkgutil.iter_modules(__path__, f"{__name__}."):
    importlib.import_module(_module.name)


def mechanism_of(privacy: PrivacySettings) -> ExchangeMechanism:
    """The mechanism that these settings name."""
    mechanism = MECHANISMS[privacy.mechanism]
    assert isinstance(mechanism, ExchangeMechanism)
    return mechanism
