"""`make mutants` takes a quarter of an hour; that its list still fits the code is seen at once."""

from pathlib import Path

import pytest

import fedbnn
from tests.mutants.mutations import MUTATIONS, Mutation

SOURCE = Path(fedbnn.__file__).parent
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_has_its_place_and_its_tests(mutation: Mutation) -> None:
    assert (SOURCE / mutation.file).read_text("utf-8").count(mutation.old) == 1
    assert mutation.new != mutation.old
    for test in mutation.tests:
        file, _, name = test.partition("::")
        assert name.partition("[")[0] in (ROOT / file).read_text("utf-8")


def test_each_mutation_has_a_name_of_its_own() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)
