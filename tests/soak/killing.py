"""The command line that scripts of `make soak` which kill have in common."""

import argparse
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def killing(doc: str | None, soak: Callable[[Path, float, int], str]) -> int:
    """Soak for `--minutes` in `--folder`; 1, and the folder stays, if that says something is not as it was."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="for how long; each kind is tried once at least")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--folder", type=Path, help="where all lies meanwhile; a new one unless it is given")
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="fedbnn-kill-"))
    folder.mkdir(parents=True, exist_ok=True)
    if found := soak(folder, arguments.minutes, arguments.seed):
        print(f"DIFFERENT {found}; {folder} is left as it is", flush=True)
        return 1
    if arguments.folder is None:
        shutil.rmtree(folder)
    return 0
