"""Runs a notebook with this Python and prints what its cells printed and drew: `run_notebook.py PATH FOLDER`."""

import sys

import nbformat
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient


class Here(KernelSpecManager):
    """The kernel is this Python, whatever else is installed for the user."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        return KernelSpec(argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"])


book = nbformat.read(sys.argv[1], as_version=4)
manager = AsyncKernelManager(kernel_spec_manager=Here(), kernel_name="python3")
NotebookClient(book, km=manager, timeout=300, resources={"metadata": {"path": sys.argv[2]}}).execute()
for cell in book.cells:
    for out in cell.get("outputs", []):
        print(out.get("text", ""), "".join(out.get("data", {}).get("image/svg+xml", "")), sep="")
