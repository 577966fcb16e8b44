"""The checks of scikit-learn that fit nothing. The others fit an estimator to data of their own, which a trained client
refuses.
"""

from typing import Any

from sklearn.utils import estimator_checks

WITHOUT_FIT = (
    "check_no_attributes_set_in_init",
    "check_estimator_repr",
    "check_estimator_cloneable",
    "check_get_params_invariance",
    "check_set_params",
    "check_estimator_tags_renamed",
    "check_valid_tag_types",
    "check_mixin_order",
)


def passes(check: str, estimator: Any) -> None:
    getattr(estimator_checks, check)(type(estimator).__name__, estimator)
