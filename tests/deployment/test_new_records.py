"""New records from files that are laid out as the site's or the run's own."""

import numpy as np
import pytest

from fedbnn.base.errors import UserError
from fedbnn.data.tables.layout import Layout
from fedbnn.deployment.labelled import read_labelled
from fedbnn.deployment.new_records import read_inputs


def test_files_are_read_in_the_layout_that_was_declared(tmp_path):
    """A header with more commas than the delimiter that was declared would be guessed otherwise."""
    file = tmp_path / "new.csv"
    file.write_bytes("größe|x,y,z|class\n1|2|a\n3|4|b\n".encode("latin-1"))
    layout = Layout(delimiter="|", encoding="latin-1")
    x = read_inputs(file, ["x,y,z", "größe"], "--input", layout)
    np.testing.assert_array_equal(x, [[2, 1], [4, 3]])
    x, y = read_labelled(file, ("a", "b"), "class", ["größe", "x,y,z"], (2,), layout)
    np.testing.assert_array_equal(x, [[1, 2], [3, 4]])
    assert y.tolist() == [0, 1]
    with pytest.raises(UserError, match="--input"):
        read_inputs(file, ["größe"], "--input", Layout())
