import dataclasses

import numpy as np
import pytest

from fedbnn import UserError
from fedbnn.deployment.alignment import read_alignment, write_alignment
from fedbnn.deployment.terms import Terms, alignment_hash, alignment_of
from tests.deployment.deployment_sample import dealt, small_config

CONFIG = small_config()
DATA = dealt(CONFIG)
TERMS = Terms.of(CONFIG, DATA, "trial")


def test_every_party_scales_inputs_as_the_dealt_data_does(tmp_path):
    write_alignment(tmp_path / "alignment.npz", alignment_of(DATA))
    alignment = read_alignment(tmp_path / "alignment.npz", TERMS)
    assert np.array_equal(alignment.normalised(alignment.raw), DATA.alignment())
    x = DATA.dataset.x_test
    assert np.array_equal(alignment.normalised(x), DATA.seen(x))


def test_the_layout_of_the_array_in_the_file_does_not_matter(tmp_path):
    np.savez(tmp_path / "alignment.npz", x=np.asfortranarray(alignment_of(DATA)))
    alignment = read_alignment(tmp_path / "alignment.npz", TERMS)
    assert np.array_equal(alignment.normalised(alignment.raw), DATA.alignment())


def tampered():
    raw = alignment_of(DATA).copy()
    raw[3, 0, 2, 2] = np.nextafter(raw[3, 0, 2, 2], np.float32(2))
    return raw


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": tampered()}, "is not the alignment set that was agreed on"),
        ({"x": alignment_of(DATA)[::-1]}, "is not the alignment set that was agreed on"),
        ({"x": alignment_of(DATA)[:-1]}, r"shape \(19, 1, 8, 8\), agreed was \(20, 1, 8, 8\)"),
        ({"x": alignment_of(DATA).astype(np.float64)}, "float64; float32 is needed"),
        ({"y": alignment_of(DATA)}, "has no array 'x'; it has: 'y'"),
        ({"x": np.array([{}])}, "never Python objects"),
    ],
)
def test_any_other_file_is_refused(tmp_path, arrays, words):
    np.savez(tmp_path / "alignment.npz", **arrays)
    with pytest.raises(UserError, match=words):
        read_alignment(tmp_path / "alignment.npz", TERMS)


def test_no_file_and_no_archive_are_refused(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        read_alignment(tmp_path / "alignment.npz", TERMS)
    (tmp_path / "alignment.npz").write_text("numbers")
    with pytest.raises(UserError, match="not an npz archive"):
        read_alignment(tmp_path / "alignment.npz", TERMS)


def test_agreed_values_that_are_not_finite_are_refused(tmp_path):
    raw = alignment_of(DATA).copy()
    raw[0] = np.nan
    terms = dataclasses.replace(TERMS, alignment=dataclasses.replace(TERMS.alignment, sha256=alignment_hash(raw)))
    write_alignment(tmp_path / "alignment.npz", raw)
    with pytest.raises(UserError, match="not finite"):
        read_alignment(tmp_path / "alignment.npz", terms)


def test_an_empty_alignment_set_scales_nothing(tmp_path):
    raw = np.zeros((0, 1, 8, 8), dtype=np.float32)
    agreed = dataclasses.replace(TERMS.alignment, points=0, sha256=alignment_hash(raw))
    write_alignment(tmp_path / "alignment.npz", raw)
    alignment = read_alignment(tmp_path / "alignment.npz", dataclasses.replace(TERMS, alignment=agreed))
    x = DATA.dataset.x_test
    assert np.array_equal(alignment.normalised(x), x)
