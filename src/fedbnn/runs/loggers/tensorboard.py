"""A run's numbers as TensorBoard's event files: `tensorboard --logdir FOLDER` shows them while the run goes on."""

from pathlib import Path
from typing import Any

from fedbnn.base.errors import UserError
from fedbnn.federation.evaluation import SOMETIMES
from fedbnn.federation.loop import Round
from fedbnn.runs.config import Config
from fedbnn.runs.loggers.numbers import numbers_of, prefixed
from fedbnn.runs.observer import Observer


class TensorBoard(Observer):
    """Writes event files into `folder`, those of a run from a configuration into FOLDER/METHOD-seedN.

    A run that goes on takes back what it will do again. Needs `fedbnn[tensorboard]`.
    """

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - an extra that not everybody has
        except ImportError as error:
            raise UserError(f"TensorBoard needs pip install 'fedbnn[tensorboard]' ({error})") from None
        self.folder = Path(folder)
        self._make = SummaryWriter
        self._writer: Any = None

    def _open(self, name: str, **given: Any) -> Any:
        """The folder is made only now: a run wants its own to be empty when it begins."""
        self.close()
        try:
            self._writer = self._make(str(self.folder / name), **given)
        except OSError as error:
            raise UserError(f"{self.folder / name} cannot be written: {error.strerror or error}") from None
        return self._writer

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None

    def run_started(self, title: str, config: Config, clients: int, round_number: int) -> None:
        self._open(f"{config.method_name}-seed{config.seed}", purge_step=max(round_number + 1, 0))

    def round_done(self, record: Round) -> None:
        writer = self._writer or self._open("")
        for name, value in numbers_of(record).items():
            writer.add_scalar(name, value, record.number)
        writer.flush()

    def run_finished(self, result: dict[str, Any]) -> None:
        found = {name: result[name] for name in SOMETIMES if name in result}
        for name, value in prefixed("scores", found).items():
            self._writer.add_scalar(name, value, result["rounds"])
        self.close()
