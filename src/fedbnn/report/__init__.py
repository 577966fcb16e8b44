"""One self-contained HTML page about a run or a comparison."""

from fedbnn.report.write import write_report

__all__ = ["write_report"]
