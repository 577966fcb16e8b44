"""Public feature maps: fitted on the alignment set alone, the same for everybody."""

from fedbnn.features.feature_map import FeatureMap

__all__ = ["FeatureMap"]
