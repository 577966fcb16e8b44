"""Regression: targets that are real numbers, networks that give a Gaussian for each, and mixtures of these.

A network has two outputs a record, of which the first is the mean and the second decides the variance
(`gaussian_of`). Targets are standardised by public numbers (`Scale`), so that all clients mean the same by both.
"""

from fedbnn.base.errors import UserError
from fedbnn.models.bayes import Prediction
from fedbnn.models.regression.measured import OUTPUTS, Measured, gaussian_of, records_of
from fedbnn.models.regression.mixture import Mixture, mixture_over
from fedbnn.models.regression.scale import Scale

Answer = Prediction | Mixture
"""What a model says of records: probabilities of classes, or a distribution of a real number."""


def of_classes(answer: Answer) -> Prediction:
    """The answer where classes are needed; a UserError in regression."""
    if isinstance(answer, Mixture):
        raise UserError("this is for classification, but data.task = 'regression'")
    return answer


def of_numbers(answer: Answer) -> Mixture:
    """The answer where a real number is needed; a UserError in classification."""
    if isinstance(answer, Prediction):
        raise UserError("this is for regression, but data.task = 'classification'")
    return answer


__all__ = [
    "OUTPUTS",
    "Answer",
    "Measured",
    "Mixture",
    "Scale",
    "gaussian_of",
    "mixture_over",
    "of_classes",
    "of_numbers",
    "records_of",
]
