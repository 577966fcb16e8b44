"""Hostile inputs out of valid ones, drawn from a seeded generator: each number of a target is always the same input.

    hostile(Random("seed/target/number"), valid files, form)

A form knows how its files are built, so that most inputs get past the first check: values of the wrong kind deep in a
tree, headers that promise what is not there, archives whose checksums are right. Every form also has bytes changed.
"""

import io
import json
import re
import tomllib
import zipfile
import zlib
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np

from tests.fuzz import corpus

Form = Callable[[Random, Sequence[bytes]], bytes]

WORDS = (
    "",
    "a",
    "__proto__",
    "<script>alert(1)</script>",
    '"onload="alert(1)',
    "</title></style>",
    "\x1b[2J\x07",
    "\0",
    "\u202e",
    "../../outside",
    "/dev/zero",
    "~nobody-of-this-name",
    "x" * 5_000,
    "antigravity:geohash",
    "os:system",
    "trapped:run",
    "{{ 7 * 7 }}",
    "%s%n",
    "'; --",
    "nan",
    "1_0",
    "٣",
)
NUMBERS = ("-1", "0", "1", "2", "0.5", "1e16", "1e308", "-1e308", "5e-324", str(2**53 + 1), str(2**63), str(-(2**63)))
EDGES = [0, 1, 127, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1]


def hostile(rng: Random, valid: Sequence[bytes], form: Form) -> bytes:
    """One input; a third of all have nothing but their bytes changed."""
    return changed_bytes(rng, valid) if rng.random() < 0.35 else form(rng, valid)


# Bytes


def changed_bytes(rng: Random, valid: Sequence[bytes], words: Sequence[bytes] = ()) -> bytes:
    """Bits flipped, parts cut, doubled, moved, put together with another file, numbers at their edges, words put in."""
    data = bytearray(rng.choice(valid))
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        at = rng.randrange(len(data) + 1)
        part = slice(at, at + rng.choice((1, 2, 4, 16, 256)))
        kind = rng.randrange(10)
        if kind < 3 and data:
            data[min(at, len(data) - 1)] ^= 1 << rng.randrange(8)
        elif kind == 3:
            del data[part]
        elif kind == 4:
            data[at:at] = data[part] * rng.choice((1, 2, 50))
        elif kind == 5:
            del data[at:]
        elif kind == 6:
            other = rng.choice(valid)
            data[at:] = other[rng.randrange(len(other) + 1) :]
        elif kind == 7:
            width = rng.choice((1, 2, 4, 8))
            edge = rng.choice(EDGES) % 2 ** (8 * width)
            data[at : at + width] = edge.to_bytes(width, rng.choice(("little", "big")))
        elif kind == 8:
            data[at:at] = rng.choice(words or [word.encode() for word in WORDS])
        else:
            data[part] = bytes(rng.randrange(256) for _ in data[part])
    return bytes(data)


def text_with(*words: str) -> Form:
    """Text whose numbers are others, whose lines go or come twice, and into which words of its own language are put."""
    own = [word.encode() for word in (*words, *WORDS)]

    def form(rng: Random, valid: Sequence[bytes]) -> bytes:
        text = rng.choice(valid)
        kind = rng.randrange(4)
        if kind == 0 and (numbers := list(re.finditer(rb"[0-9]+(?:\.[0-9]+)?", text))):
            found = rng.choice(numbers)
            value = rng.choice((*NUMBERS, corpus.DIGITS, corpus.MORE_DIGITS)).encode()
            return text[: found.start()] + value + text[found.end() :]
        if kind == 1:
            lines = text.splitlines(keepends=True)
            rng.shuffle(lines)
            return b"".join(lines[: rng.randrange(len(lines) + 1)] + lines[: rng.randrange(3)])
        return changed_bytes(rng, valid, own)

    return form


# Trees: JSON, lines of it, TOML


def _value(rng: Random) -> str:
    """A value that nobody expects, as JSON."""
    kind = rng.randrange(4)
    if kind == 0:
        return rng.choice(list(corpus.VALUES.values()))
    return json.dumps(rng.choice(WORDS)) if kind == 1 else rng.choice((*NUMBERS, "[]", "{}", "[null]", "false", '""'))


def _changed_tree(rng: Random, tree: Any, chosen: list[str]) -> Any:
    """One place of the tree is another; texts that stand for a value are appended to `chosen`."""
    if not (isinstance(tree, dict | list) and tree) or rng.random() < 0.12:
        kind = rng.randrange(6)
        if kind == 0:
            return [tree, tree]
        if kind == 1:
            return {"a": tree}
        if kind == 2 and isinstance(tree, int | float):
            return -tree
        chosen.append(_value(rng))
        return f"@{len(chosen) - 1}@"
    keys: list[Any] = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
    key, kind = rng.choice(keys), rng.randrange(12)
    if kind == 0:
        del tree[key]
    elif kind == 1 and isinstance(tree, dict):
        tree[rng.choice((*WORDS, *map(str, keys)))] = tree.pop(key)
    elif kind == 1:
        tree += tree[: rng.choice((1, 10, 1000))]
    elif kind == 2:
        tree[key] = tree[rng.choice(keys)]
    else:
        tree[key] = _changed_tree(rng, tree[key], chosen)
    return tree


def _mutated(rng: Random, tree: Any, write: Callable[[Any], str], value: Callable[[str], str] = str) -> str:
    chosen: list[str] = []
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        tree = _changed_tree(rng, tree, chosen)
    return re.sub(r'"@([0-9]+)@"', lambda found: value(chosen[int(found[1])]), write(tree))


def json_tree(rng: Random, valid: Sequence[bytes]) -> bytes:
    if rng.random() < 0.05:
        return rng.choice([*corpus.VALUES.values(), *corpus.FACTS.values()]).encode()
    return _mutated(rng, json.loads(rng.choice(valid)), json.dumps).encode()


def json_lines(rng: Random, valid: Sequence[bytes]) -> bytes:
    lines = rng.choice(valid).splitlines()
    for at in rng.sample(range(len(lines)), min(len(lines), rng.choice((1, 1, 3)))):
        lines[at] = json_tree(rng, [lines[at]])
    if rng.random() < 0.2:
        rng.shuffle(lines)
    return b"\n".join(lines) + b"\n" * (rng.random() < 0.9)


def toml_tree(rng: Random, valid: Sequence[bytes]) -> bytes:
    if rng.random() < 0.05:
        return rng.choice(list(corpus.TOML.values())).encode()
    if rng.random() < 0.3:
        return text_with("[a.b]", "[[a]]", '"""', "'''", "= ", "inf", "0x", "1979-05-27", "{a = 1}")(rng, valid)
    return _mutated(rng, tomllib.loads(rng.choice(valid).decode()), _toml, _toml_value).encode(errors="replace")


def _toml(tree: Any) -> str:
    if not isinstance(tree, dict):
        return _inline(tree)
    return "\n".join(f"{json.dumps(key)} = {_inline(value)}" for key, value in tree.items()) + "\n"


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_inline(one)}" for key, one in value.items()) + "}"
    return "[" + ", ".join(map(_inline, value)) + "]" if isinstance(value, list) else json.dumps(value, default=str)


def _toml_value(text: str) -> str:
    return {"null": "1979-05-27", "NaN": "nan", "Infinity": "inf", "1e999": "-inf"}.get(text, text)


# Arrays and archives

ODD = [
    *(np.zeros(shape) for shape in ((), (0,), (4,), (4, 0), (0, 3), (4, 3, 1), (1,) * 5, (1,) * 32)),
    *(
        np.zeros((4, 3), dtype=kind)
        for kind in ("?", "<c8", "<f2", "<f8", ">i2", "<u8", "<M8[s]", "<m8[s]", "V4", "S3", "U3")
    ),
    np.array(["a", "\ud800", "\n", ""]),
    np.full(4, np.nan),
    np.full((4, 3), np.inf),
    np.full(4, 2**64 - 1, dtype=np.uint64),
    np.full(4, -(2**63)),
    np.zeros(4, dtype=[("a", "<f4")]),
]
_KINDS = ("'<f4'", "'<i8'", "'|u1'", "'>f8'", "'|b1'", "'<U3'", "'|O'", "'<c16'", "'<M8[s]'", "[('a', '<f4')]", "1")
_SIZES = ("0", "1", "3", "4", "-1", str(2**31), str(2**40), str(2**63), "1.0", "True", "(1,)")


def array(rng: Random, valid: Sequence[bytes]) -> bytes:
    """NumPy's format with another header, or an array that nobody expects."""
    kind = rng.randrange(5)
    if kind == 0:
        return rng.choice(list(corpus.NPY.values()))
    if kind == 1:
        return corpus.npy(rng.choice(ODD))
    shape = "(" + "".join(f"{rng.choice(_SIZES)}, " for _ in range(rng.choice((0, 1, 1, 2, 3, 9)))) + ")"
    version = rng.choice((b"\x01\x00",) * 4 + (b"\x02\x00", b"\x03\x00"))
    header = corpus.described(rng.choice(_KINDS), rng.choice(("False", "False", "True", "1")), shape)
    return corpus.npy_header(header, rng.randbytes(rng.choice((0, 4, 12, 48, 1024))), version)


def archive(rng: Random, valid: Sequence[bytes]) -> bytes:
    """A zip of which a member is another; packed anew, so that its checksums are right."""
    if rng.random() < 0.05:
        return rng.choice(list(corpus.ARCHIVES.values()))
    with zipfile.ZipFile(io.BytesIO(rng.choice(valid))) as file:
        members = {name: file.read(name) for name in file.namelist()}
    name, kind = rng.choice(list(members)), rng.randrange(8)
    if kind == 0:
        del members[name]
    elif kind == 1:
        members[rng.choice((*WORDS[:6], "../x.npy", "x_test.npy"))] = members.pop(name)
    elif kind == 2:
        members[name] = members[rng.choice(list(members))]
    else:
        members[name] = hostile(rng, [members[name]], array)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as file:
        for one, data in members.items():
            file.writestr(one or "x", data)
    return stream.getvalue()


def safetensors(rng: Random, valid: Sequence[bytes]) -> bytes:
    """Another header, mostly as long as it says, before the same numbers."""
    data = rng.choice(valid)
    end = 8 + int.from_bytes(data[:8], "little")
    header, numbers = json_tree(rng, [data[8:end]]), data[end:]
    length = len(header) if rng.random() < 0.9 else rng.choice(EDGES)
    return length.to_bytes(8, "little") + header + changed_bytes(rng, [numbers]) * (rng.random() < 0.9)


def picture(rng: Random, valid: Sequence[bytes]) -> bytes:
    """A PNG of which one part is another, with a checksum that is right; of other formats the bytes."""
    data = rng.choice(valid)
    if not data.startswith(b"\x89PNG"):
        return changed_bytes(rng, [data])
    parts, at = [], 8
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        parts.append(data[at + 4 : at + 8 + length])
        at += 12 + length
    number = rng.randrange(len(parts))
    name = parts[number][:4]
    parts[number] = name + changed_bytes(rng, [parts[number][4:]])
    if rng.random() < 0.1:
        parts.insert(rng.randrange(len(parts)), rng.choice(parts))
    pieces = [len(one[4:]).to_bytes(4, "big") + one + zlib.crc32(one).to_bytes(4, "big") for one in parts]
    return data[:8] + b"".join(pieces)
