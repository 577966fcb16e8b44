import pytest

from fedbnn.base.errors import UserError
from fedbnn.data.csv_source import Table, number
from fedbnn.data.tables.layout import decoded, delimiter_of


@pytest.mark.parametrize(
    ("header", "sign"),
    [
        ("a,b,c", ","),
        ("a;b;c", ";"),
        ("a\tb\tc", "\t"),
        ("a|b|c", "|"),
        ('"a;x;y",b', ","),
        ("\n\na;b\n1,5;2,5,,,,", ";"),
        ("alone", ","),
        ("", ","),
        ("a;b\r1,1,1", ";"),
    ],
)
def test_the_header_says_what_divides_cells(header, sign):
    assert delimiter_of(header) == sign


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1"])
def test_umlauts_come_back_from_every_encoding(tmp_path, encoding):
    text = "größe;straße\n1;Zürich\n"
    assert decoded(text.encode(encoding), "auto") == text
    (tmp_path / "a.csv").write_bytes(text.encode(encoding))
    assert Table.read(tmp_path / "a.csv", "it").header == ["größe", "straße"]


def test_a_declared_encoding_is_not_guessed(tmp_path):
    (tmp_path / "a.csv").write_bytes("größe,b\n1,2\n".encode("latin-1"))
    with pytest.raises(UserError, match="it is not a CSV file in utf-8"):
        Table.read(tmp_path / "a.csv", "it", encoding="utf-8")
    (tmp_path / "b.csv").write_bytes("€,b\n1,2\n".encode("cp1252"))
    assert Table.read(tmp_path / "b.csv", "it", encoding="cp1252").header == ["€", "b"]


@pytest.mark.parametrize(
    ("text", "decimal", "value"),
    [
        ("3,5", ",", 3.5),
        ("-0,25", ",", -0.25),
        ("12", ",", 12.0),
        ("1,5e2", ",", 150.0),
        ("1.234,5", ",", None),  # a sign between thousands could be a decimal one elsewhere
        ("1.5", ",", None),
        ("3,5", ".", None),
        ("3.5", ".", 3.5),
        ("inf", ".", None),
    ],
)
def test_decimal_signs(text, decimal, value):
    assert number(text, decimal) == value
