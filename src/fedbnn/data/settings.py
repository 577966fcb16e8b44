"""The settings of a federation's data: which records, how they lie in files, and how many of them are public."""

from typing import Literal

from pydantic import Field

from fedbnn.base.settings import settings, with_default
from fedbnn.data.diabetes_source import PUBLISHED
from fedbnn.data.tables.columns import ColumnSettings
from fedbnn.data.tables.layout import MISSING, Decimal, Delimiter, Encoding, Layout
from fedbnn.data.targets import declared_scale
from fedbnn.models.regression import Scale

Task = Literal["classification", "regression"]
Inputs = Literal["raw", "features", "mirrored_features", "kernel_features", "mirrored_kernel_features"]


@settings
class DataSettings:
    """Which records, and how many of them are public or kept for tuning."""

    source: str = Field(
        default="digits",
        description="Name of a data set, or npz, csv, parquet, huggingface or folder for files of yours (see "
        "`fedbnn datasets`), or a function of yours that returns a Dataset or arrays, as 'package.module:function'.",
    )
    path: str | tuple[str, ...] = Field(
        default="",
        description="File or folder to read when it is yours; of tables also a folder or a list of files, "
        "one a client, whose name is the file's.",
    )
    task: Task = Field(
        default="classification",
        description="What is predicted: classes, or a real number (regression); npz, csv, parquet, diabetes and your "
        "own.",
    )
    target: str = Field(
        default="",
        description="Column that holds the class, or in regression the number; tables and Hugging Face data sets only.",
    )
    target_mean: float = Field(
        default=0.0,
        description="In regression, about where targets lie, in their own unit: public, and never worked out from "
        "records; models learn (target - target_mean) / target_sd.",
    )
    target_sd: float = Field(
        default=0.0,
        ge=0,
        description="In regression, about how far targets go from target_mean: likewise public, and above 0; 0: as "
        "published with the data set.",
    )
    client_column: str = Field(
        default="",
        description='Column that names the client, for the "natural" partition; tables only, optional.',
    )
    columns: dict[str, ColumnSettings] = Field(
        default_factory=dict,
        description="What the columns of a table hold, each a table of its own ([data.columns.age], kind = ...); with "
        "any, a table may hold text, dates and missing values, and what is not declared is guessed by public records.",
    )
    delimiter: Delimiter = with_default(Layout, "delimiter", "auto")
    decimal: Decimal = with_default(Layout, "decimal", ".")
    encoding: Encoding = with_default(Layout, "encoding", "auto")
    missing: tuple[str, ...] = with_default(Layout, "missing", MISSING)
    test_fraction: float = Field(
        default=0.25,
        gt=0,
        lt=1,
        description="Share of records held out for testing, the same for each class and client; tables, "
        "folder and your own (x, y).",
    )
    test_records: int = Field(
        default=0,
        ge=0,
        description="Score only the first so many test records, to save time; 0 scores all.",
    )
    unseen_classes: int = Field(
        default=0,
        ge=0,
        description='The last so many classes, of which nobody sees a record; evaluation.foreign = "unseen" asks about '
        "theirs.",
    )
    alignment: int = Field(
        default=400,
        ge=0,
        description="Training records held out of every client as the public, unlabelled alignment set.",
    )
    alignment_skew: float = Field(
        default=1.0,
        ge=1,
        description="For experiments: how many times as common the commonest class is in the alignment set as the "
        "rarest, with shares in equal ratios in between; 1: as classes happen to be drawn.",
    )
    alignment_source: str = Field(
        default="",
        description="Take the alignment set from elsewhere instead: inputs of another data set (its name or an .npz "
        "file; for tables with data.columns a .csv or .parquet file), or images made from chance (noise, leaves, "
        "fractals); all training records are then the clients'.",
    )
    inputs: Inputs = Field(
        default="raw",
        description="What models see: raw records, or public features of them, fitted on the alignment set (wavelet "
        "scattering of images, random Fourier features of tables), on which a small mlp goes far with few records; "
        "mirrored_features are those of images that may be mirrored: the mean of both views; kernel_features and "
        "mirrored_kernel_features, of images, are those that FedBNN's heads have.",
    )
    validation: int = Field(
        default=0,
        ge=0,
        description="Training records held out of every client for tuning; "
        "scored instead of the test records when evaluation is on the validation split.",
    )
    calibration: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="About this share of each client's own records is kept from all training, to calibrate prediction "
        "sets and abstention with (`fedbnn predict --alpha`); which ones, the seed decides.",
    )

    @property
    def regression(self) -> bool:
        return self.task == "regression"

    def scale(self) -> Scale | None:
        """That of the target in regression; None in classification."""
        return self.known_scale() if self.regression else None

    def known_scale(self) -> Scale:
        """That of the target, as it was declared or is published."""
        usual = PUBLISHED if self.source == "diabetes" else None
        return declared_scale(self.target_mean, self.target_sd, usual)

    @property
    def layout(self) -> Layout:
        """How files of text are laid out."""
        return Layout(self.delimiter, self.decimal, self.encoding, self.missing)
