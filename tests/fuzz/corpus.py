"""Hostile inputs by kind: what once broke a reader, and what might. Small, readable, and made anew in every process."""

import io
import json
import zipfile
from collections.abc import Iterator

import numpy as np

DIGITS = "9" * 400  # more than any float holds
MORE_DIGITS = "9" * 5_000  # more than Python reads


def flips(good: bytes, count: int, seed: int = 0) -> Iterator[bytes]:
    """The same bytes with some of them changed, cut or put in twice; the same ones every time."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        data = bytearray(good)
        for _ in range(int(rng.integers(1, 4))):
            at, kind = int(rng.integers(len(data))), int(rng.integers(8))
            if kind == 0:
                del data[at + 1 :]
            elif kind == 1:
                data[at:at] = data[max(0, at - 16) : at]
            elif kind == 2:
                data[at] = 0
            else:
                data[at] ^= 1 << int(rng.integers(8))
        yield bytes(data)


# NumPy's format


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=False)
    return stream.getvalue()


def npy_header(text: str, data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    """A file with this header, whatever it says."""
    header = text.encode("latin-1").ljust(117) + b"\n"
    return b"\x93NUMPY" + version + len(header).to_bytes(2 if version[0] == 1 else 4, "little") + header + data


def described(descr: str = "'<f4'", order: str = "False", shape: str = "(1,)") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"


NPY: dict[str, bytes] = {
    "empty": b"",
    "magic alone": b"\x93NUMPY\x01\x00",
    "no end of header": b"\x93NUMPY\x01\x00\xff\xff{'descr'",
    "minus signs": npy_header("-" * 5_000 + "1"),
    "brackets": npy_header("(" * 5_000),
    "unbalanced": npy_header("{'descr': '<f4', 'fortran_order': False, 'shape': (1,"),
    "brackets in the shape": npy_header(described(shape="(" * 300 + ")" * 300)),
    "shape beyond 64 bits": npy_header(described(shape=f"(0, {2**62}, {2**62})")),
    "shape of many digits": npy_header(described(shape=f"({MORE_DIGITS},)")),
    "shape of many zeros": npy_header(described(shape="(0, 4611686018427387904)")),
    "many dimensions": npy_header(described(shape="(" + "1, " * 500 + "1)"), b"\0" * 4),
    "negative": npy_header(described(shape="(-1,)"), b"\0" * 4),
    "negative twice": npy_header(described(shape="(-1, -1)"), b"\0" * 4),
    "a float as shape": npy_header(described(shape="(1.0,)"), b"\0" * 4),
    "a bool as shape": npy_header(described(shape="(True,)"), b"\0" * 4),
    "eight terabytes": npy_header(described("'<f8'", shape="(1000000000000,)")),
    "eight terabytes of float32": npy_header(described(shape="(2000000000000,)")),
    "python objects": npy_header(described("'|O'"), b"cos\nsystem\n(S'false'\ntR."),
    "a record type": npy_header(described("[('a', '<f4')]"), b"\0" * 4),
    "an unknown type": npy_header(described("'<q9'"), b"\0" * 4),
    "fortran": npy_header(described(order="True", shape="(1, 1)"), b"\0" * 4),
    "code": npy_header(described(shape="(__import__('os').getpid(),)"), b"\0" * 4),
    "null bytes": npy_header("\0" * 100),
    "version 2": npy_header(described(), b"\0" * 4, b"\x02\x00"),
    "version 9": npy_header(described(), b"\0" * 4, b"\x09\x00"),
    "too short": npy_header(described(), b"\0" * 3),
    "too long": npy_header(described(), b"\0" * 5),
}

# Facts beside a message, as JSON


def nested(depth: int, opening: str = "[", closing: str = "]") -> str:
    return opening * depth + closing * depth


VALUES: dict[str, str] = {
    "400 digits": DIGITS,
    "minus 400 digits": f"-{DIGITS}",
    "5000 digits": MORE_DIGITS,
    "NaN": "NaN",
    "infinity": "Infinity",
    "overflow": "1e999",
    "true": "true",
    "null": "null",
    "text": '"1.0"',
    "list": "[1.0]",
    "deep list": nested(900),
    "deeper list": nested(100_000),
    "deep object": nested(400, '{"a":', "}").replace(":}", ":1}", 1),
    "lone surrogate": r'"\ud800"',
    "object": "{}",
}

FACTS: dict[str, str] = {
    "empty": "",
    "open": "{",
    "a list": "[]",
    "a number": "1",
    "brackets": "[" * 100_000,
    "surrogate as key": r'{"\udfff": 1}',
    "surrogate as reason": r'{"refused": "\ud800"}',
    "refused with a list": '{"refused": [1, {"a": null}]}',
    "failed with an object": '{"failed": {"a": [1]}, "text": [null]}',
    "control signs": json.dumps({"refused": "\x1b[2J\r\n\0" + "x" * 10_000}),
    **{f"seconds {name}": f'{{"seconds": {value}}}' for name, value in VALUES.items()},
    **{f"info {name}": f'{{"info": {value}}}' for name, value in VALUES.items() if value != "{}"},
    **{f"info of {name}": f'{{"info": {{"loss": {value}}}}}' for name, value in VALUES.items()},
    **{f"evaluation {name}": f'{{"evaluation": {value}}}' for name, value in VALUES.items()},
    **{f"evaluation of {name}": f'{{"evaluation": {{"personal": {value}}}}}' for name, value in VALUES.items()},
    "info that looks like scores": '{"info": {"nll": 1.0}}',
    "info that looks like a line": '{"info": {"round": -1, "name": 1, "client": 7}}',
    "info of many names": json.dumps({"info": {f"a{number}": 1.0 for number in range(1_000)}}),
    "evaluation of many variants": json.dumps({"evaluation": {f"a{number}": {} for number in range(1_000)}}),
}

# Paths

PATHS: dict[str, str] = {
    "no such user": "~nobody-of-this-name/records",
    "null byte": "a\0b",
    "long": "a" * 5_000,
    "surrogate": "\ud800",
    "empty": "",
}

# Settings, as TOML

TOML: dict[str, str] = {
    "deep list": "a = " + nested(5_000),
    "deep inline tables": "a = " + "{a = " * 3_000 + "1" + "}" * 3_000,
    "deep dotted key": "a." * 3_000 + "a = 1",
    "deep table": "[" + "a." * 3_000 + "a]\nb = 1",
    "5000 digits": f"seed = {MORE_DIGITS}\nname = {MORE_DIGITS}",
    "5000 hexadecimal digits": f"seed = 0x{'f' * 5_000}\nname = 0x{'f' * 5_000}",
    "400 digits": f"seed = {DIGITS}\nwait = {DIGITS}\nname = {DIGITS}",
    "infinity": "participation = inf\nwait = inf",
    "nan": "participation = nan\nwait = nan",
    "a date": "name = 1979-05-27\nseed = 1979-05-27",
    "null byte": "name = '\0'",
    "surrogate": 'name = "\\ud800"',
    "a list of tables": "[[data]]\n[[data]]",
    "numbers for tables": "data = 1\nmodel = 1\nprivacy = 1\nmethods = 1\ntraining = 1",
    "lists for tables": "data = []\nmodel = []\nprivacy = []\nmethods = [[]]\ntraining = []",
    "byte order mark": "\ufeffname = 'a'",
    "open": "name = '",
}

# Archives


def archive(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        for name, data in members.items():
            file.writestr(name, data)
    return stream.getvalue()


def npz(**arrays: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def deflated_zeros(size: int) -> bytes:
    """A member of which one byte on disk is a thousand in memory."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("x_train.npy", npy_header(described(shape=f"({size // 4},)"), bytes(size)))
    return stream.getvalue()


ARCHIVES: dict[str, bytes] = {
    "not an archive": b"hello",
    "empty": b"",
    "an array": npy(np.zeros(3)),
    "an empty archive": archive({}),
    "text as member": archive({"x_train.npy": b"hello"}),
    "no ending": archive({"x_train": b"hello"}),
    "path as name": archive({"../x_train.npy": b"hello", "/etc/x_train.npy": b"hello"}),
    "a folder as member": archive({"x_train.npy/": b""}),
    "no name": archive({".npy": npy(np.zeros(3))}),
    **{f"header: {name}": archive({"x_train.npy": data}) for name, data in NPY.items()},
}
