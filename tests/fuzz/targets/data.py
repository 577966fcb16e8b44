"""Records of anybody: archives, tables, pictures, and data sets as their authors publish them."""

import gzip
import io
from pathlib import Path

import numpy as np
import pyarrow as pa
from PIL import Image
from pyarrow import parquet

from fedbnn.data import DataSettings, PartitionSettings, federate, load_dataset
from fedbnn.data.cifar_source import LAYOUTS, CifarFiles
from fedbnn.data.csv_source import load_csv
from fedbnn.data.folder_source import load_folder
from fedbnn.data.heart_source import HOSPITALS, HeartFiles
from fedbnn.data.idx_source import IdxFiles
from fedbnn.data.npz_source import NpzFile, load_npz
from fedbnn.data.stored import dataset_of
from fedbnn.data.tables.columns import ColumnSettings
from fedbnn.data.tables.layout import Layout
from fedbnn.deployment.alignment import read_alignment, write_alignment
from fedbnn.deployment.labelled import read_labelled
from fedbnn.deployment.terms import Terms, alignment_of
from tests.data.original_files import CIFAR10_NAMES, colour, grey, heart_line, idx_bytes, python2_pickle, python3_pickle
from tests.deployment.deployment_sample import dealt, small_config
from tests.fuzz import corpus
from tests.fuzz.mutations import archive, changed_bytes, picture, text_with
from tests.fuzz.targets.target import Prepared, Target, from_file

RECORDS = {
    "x_train": np.arange(12, dtype=np.float32).reshape(4, 3),
    "y_train": np.array([0, 1, 0, 1]),
    "x_test": np.zeros((2, 3), dtype=np.float32),
    "y_test": np.array([0, 1]),
    "group_train": np.array(["a", "b", "a", "b"]),
    "group_test": np.array(["a", "b"]),
    "fine_label_names": np.array(["no", "yes"]),
}
CSV = "age,sick\n1,yes\n2,no\n3.5,yes\n4,no\n"
TABLE = "age;day;sick\n" + "1,5;2020-02-03;yes\n2;;no\n3;01.02.2020;yes\n4;NA;no\n" * 4
COLUMNS = {
    "age": ColumnSettings("number", low=0, high=9),
    "day": ColumnSettings("date", low=2000, high=2030),
}
CELLS = (
    "1e999",
    "nan",
    "\0",
    "\x1b[2J",
    '"',
    ";",
    ",",
    '"a\nb"',
    "9999-99-99",
    "0000-00-00",
    "9" * 5_000,
    "\ufeff",
    "\r",
)
TABLES = text_with(*CELLS)


def everything(path: Path) -> None:
    """Every array of an archive."""
    file = NpzFile(path, "data.path = 'x'")
    for key in file.files:
        file.array(key)


def described(path: Path, source: str = "csv") -> None:
    """A table whose columns are described, dealt to two clients."""
    given = DataSettings(source=source, path=str(path), target="sick", columns=COLUMNS, decimal=",", alignment=4)
    data = federate(load_dataset(given), given, PartitionSettings(kind="iid", clients=2), 0)
    assert data.coding is not None


def _npz(folder: Path) -> Prepared:
    images = {**RECORDS, "x_train": np.zeros((4, 3, 3), np.uint8), "x_test": np.ones((2, 3, 3), np.uint8)}
    return Prepared(
        [corpus.npz(**RECORDS), corpus.npz(**images)],
        from_file(folder / "records.npz", everything, lambda path: load_npz(str(path))),
    )


def _alignment(folder: Path) -> Prepared:
    config = small_config()
    data = dealt(config)
    terms = Terms.of(config, data, "trial")
    file = folder / "alignment.npz"
    write_alignment(file, alignment_of(data))
    return Prepared([file.read_bytes()], from_file(file, lambda path: read_alignment(path, terms)))


def _csv(folder: Path) -> Prepared:
    known = "x,y,class\n1,2,a\n3,4,b\n"
    return Prepared(
        [CSV.encode(), known.encode()],
        from_file(
            folder / "records.csv",
            lambda path: load_csv(str(path), "sick", "", 0.5),
            lambda path: read_labelled(path, ("a", "b"), "class", ("x", "y"), (2,), Layout()),
        ),
    )


def _table(folder: Path) -> Prepared:
    return Prepared([TABLE.encode()], from_file(folder / "records.csv", described))


def _parquet(folder: Path) -> Prepared:
    stream = io.BytesIO()
    table = {"age": [1.5, 2.0, None, 4.0] * 4, "day": ["2020-02-03", None] * 8, "sick": ["yes", "no"] * 8}
    parquet.write_table(pa.table(table), stream)
    return Prepared([stream.getvalue()], from_file(folder / "records.parquet", lambda path: described(path, "parquet")))


def _pictures(folder: Path) -> Prepared:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    valid = []
    for image in (Image.fromarray(pixels), Image.fromarray(pixels[..., 0]), Image.fromarray(pixels).convert("P")):
        for kind in ("PNG", "BMP"):
            stream = io.BytesIO()
            image.save(stream, kind)
            valid.append(stream.getvalue())
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG")
    for name in ("cat", "dog"):
        (folder / name).mkdir()
        for number in range(2):
            (folder / name / f"{number}.png").write_bytes(valid[0])
    readers = from_file(folder / "cat" / "0.png", lambda _: load_folder(str(folder), 0.5))
    return Prepared([*valid, stream.getvalue()], readers)


def _idx(folder: Path) -> Prepared:
    x, y = grey(4)
    for half in ("train", "t10k"):
        (folder / f"{half}-images-idx3-ubyte").write_bytes(idx_bytes(x))
        (folder / f"{half}-labels-idx1-ubyte").write_bytes(idx_bytes(y))
    packed = folder / "packed"
    packed.mkdir()
    for file in list(folder.glob("*ubyte")):
        (packed / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))

    def read(place: Path) -> None:
        dataset_of(IdxFiles(place, "data set 'mnist'"), "mnist")

    name = "train-images-idx3-ubyte"
    return Prepared(
        [idx_bytes(x), gzip.compress(idx_bytes(x))],
        [
            *from_file(folder / name, lambda file: read(file.parent)),
            *from_file(packed / f"{name}.gz", lambda file: read(file.parent)),
        ],
    )


def _cifar(folder: Path) -> Prepared:
    x, y = colour(4)
    batch = {b"data": x.reshape(len(x), -1), b"labels": y.tolist()}
    names = {b"label_names": CIFAR10_NAMES}
    valid = [pickled for one in (batch, names) for pickled in (python2_pickle(one), python3_pickle(one, 4))]
    layout = LAYOUTS["cifar10"][1]
    files = CifarFiles(folder, layout, "data set 'cifar10'")
    return Prepared(
        valid,
        [
            lambda data: files._batch("data_batch_1", data),
            *from_file(folder / layout.names, lambda _: files.names()),
        ],
    )


def _heart(folder: Path) -> Prepared:
    rng = np.random.default_rng(0)
    text = "\n".join(heart_line(rng, sick % 2 == 0) for sick in range(8)).encode()
    for name in HOSPITALS.values():
        (folder / name).write_bytes(text)
    first = folder / HOSPITALS["Cleveland"]
    return Prepared([text], from_file(first, lambda _: dataset_of(HeartFiles(folder, "data set 'heart'"), "heart")))


def _arrow(folder: Path) -> Prepared:
    schema = pa.schema({"age": pa.float64(), "day": pa.string(), "sick": pa.string()})
    table = pa.table(
        {"age": [1.5, 2.0, None, 4.0] * 4, "day": ["2020-02-03", None] * 8, "sick": ["yes", "no"] * 8}, schema
    )
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, schema) as writer:
        writer.write_table(table)
    return Prepared(
        [stream.getvalue()], from_file(folder / "records.arrow", lambda path: described(path, "huggingface"))
    )


PICKLES = text_with(
    "cos\nsystem\n", "(S'false'\ntR.", "cnumpy\nndarray\n", "Pa\n", "\x80\x04", "c__builtin__\neval\n", "R", "b", "."
)

DATA = (
    Target("npz", "records, NumPy's archive", archive, _npz, 0.5),
    Target("alignment", "an alignment set, NumPy's archive", archive, _alignment, 0.5),
    Target("csv", "records, CSV", TABLES, _csv),
    Target("table", "a table with described columns, CSV", TABLES, _table, 0.5),
    Target("parquet", "the same in Parquet", changed_bytes, _parquet, 0.5),
    Target("arrow", "the same as Hugging Face keeps it", changed_bytes, _arrow, 0.1),
    Target("pictures", "PNG, BMP and JPEG", picture, _pictures),
    Target("idx", "MNIST's files, packed or not", changed_bytes, _idx),
    Target("cifar", "CIFAR's pickled batches", PICKLES, _cifar),
    Target("heart", "the heart-disease records", text_with("?", ",,", "nan", "1e999"), _heart, 0.2),
)
