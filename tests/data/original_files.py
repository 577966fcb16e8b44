"""Writes small data sets in the formats in which the originals are published."""

import gzip
import io
import pickle
import struct
import tarfile

import numpy as np

PARTS = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


def grey(records, seed=0):
    """Images N x 28 x 28 and labels of ten classes, each at least once."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (records, 28, 28)).astype(np.uint8), rng.permutation(records).astype(np.uint8) % 10


def colour(records, classes=10, seed=0):
    """Images N x 3 x 32 x 32 and labels."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 256, (records, 3, 32, 32)).astype(np.uint8)
    return x, (rng.permutation(records) % classes).astype(np.uint8)


def idx_bytes(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_idx(folder, halves, compressed=False):
    folder.mkdir(parents=True, exist_ok=True)
    for half, arrays in halves.items():
        for name, array in zip(PARTS[half], arrays, strict=True):
            content = idx_bytes(array)
            path = folder / (f"{name}.gz" if compressed else name)
            path.write_bytes(gzip.compress(content) if compressed else content)


def binary_batch(x, *labels):
    return np.concatenate([np.stack(labels, axis=1), x.reshape(len(x), -1)], axis=1).astype(np.uint8).tobytes()


def python2_pickle(batch):
    """A dictionary as Python 2 and NumPy 1 pickled it: texts as byte strings, arrays through _reconstruct.

    Written opcode by opcode, because no Python 3 writes this.
    """

    def text(value):
        return b"T" + struct.pack("<I", len(value)) + value

    def anything(value):
        if isinstance(value, bytes):
            return text(value)
        if isinstance(value, list):
            return b"](" + b"".join(anything(one) for one in value) + b"e"
        if isinstance(value, int):
            return b"J" + struct.pack("<i", value)
        shape = b"(" + b"".join(b"J" + struct.pack("<i", size) for size in value.shape) + b"t"
        dtype = b"cnumpy\ndtype\n(" + text(b"u1") + b"K\x00K\x01tR(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xff"
        dtype += b"J\xff\xff\xff\xffK\x00tb"
        made = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00t" + text(b"b") + b"tR"
        return made + b"(K\x01" + shape + dtype + b"I00\n" + text(value.tobytes()) + b"tb"

    items = b"".join(text(key) + anything(value) for key, value in batch.items())
    return b"\x80\x02}(" + items + b"u."


def python3_pickle(batch, protocol):
    """The same as Python 3 writes it."""
    return pickle.dumps({key.decode(): value for key, value in batch.items()}, protocol=protocol)


def split_in_five(x, y):
    return list(zip(np.array_split(x, 5), np.array_split(y, 5), strict=True))


def cifar10_binary(train, test):
    files = {f"data_batch_{i}.bin": binary_batch(x, y) for i, (x, y) in enumerate(split_in_five(*train), 1)}
    return files | {"test_batch.bin": binary_batch(*test), "batches.meta.txt": b"\n".join(CIFAR10_NAMES) + b"\n\n"}


def cifar10_python(train, test, pickled=python2_pickle):
    def batch(x, y):
        return pickled({b"data": x.reshape(len(x), -1), b"labels": y.tolist()})

    files = {f"data_batch_{i}": batch(x, y) for i, (x, y) in enumerate(split_in_five(*train), 1)}
    return files | {"test_batch": batch(*test), "batches.meta": pickled({b"label_names": CIFAR10_NAMES})}


def cifar100_binary(train, test):
    return {
        "train.bin": binary_batch(train[0], train[1] // 5, train[1]),
        "test.bin": binary_batch(test[0], test[1] // 5, test[1]),
        "fine_label_names.txt": b"\n".join(CIFAR100_NAMES),
    }


def cifar100_python(train, test, pickled=python2_pickle):
    def batch(x, y):
        coarse = (y // 5).tolist()
        return pickled({b"data": x.reshape(len(x), -1), b"fine_labels": y.tolist(), b"coarse_labels": coarse})

    meta = pickled({b"fine_label_names": CIFAR100_NAMES, b"coarse_label_names": CIFAR100_NAMES[:20]})
    return {"train": batch(*train), "test": batch(*test), "meta": meta}


CIFAR10_NAMES = [b"airplane", b"automobile", b"bird", b"cat", b"deer", b"dog", b"frog", b"horse", b"ship", b"truck"]
CIFAR100_NAMES = [b"name %d" % i for i in range(100)]


def write_folder(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def write_archive(path, inside, files):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"{inside}/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


HEART_FILES = [f"processed.{name}.data" for name in ("cleveland", "hungarian", "switzerland", "va")]


def heart_line(rng, sick, **cells):
    """A complete record; `cells` replaces some of its values."""
    record = {
        "age": rng.integers(30, 70),
        "sex": rng.integers(0, 2),
        "cp": rng.integers(1, 5),
        "trestbps": rng.integers(100, 180),
        "chol": rng.integers(0, 400),
        "fbs": rng.integers(0, 2),
        "restecg": rng.integers(0, 3),
        "thalach": rng.integers(80, 200),
        "exang": rng.integers(0, 2),
        "oldpeak": round(float(rng.uniform(-1, 4)), 1),
        "slope": "?",
        "ca": "?",
        "thal": "?",
        "num": rng.integers(1, 5) if sick else 0,
    } | cells
    return ",".join(str(value) for value in record.values())


def write_heart(folder, records=20, seed=0):
    """Complete records of both classes in every hospital; their lines, by file."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for name in HEART_FILES:
        written[name] = [heart_line(rng, sick=i % 2 == 1) for i in range(records)]
        (folder / name).write_text("\n".join(written[name]) + "\n")
    return written
