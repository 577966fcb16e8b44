"""Does the test suite notice when the privacy layer is broken? `make mutants`

    python tests/mutants/run.py [--only WORDS] [--jobs 2]

Each mutation is made in a copy of src, and the few tests that should notice are run against the copy. The script fails
if one survives, if its text is no longer there exactly once, or if the tests fail without it or cannot be run with it.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from mutations import MUTATIONS, Mutation

ROOT = Path(__file__).resolve().parents[2]
FAILED = 1  # pytest's exit code for tests that ran and failed; others mean that they could not be run


def problem(mutation: Mutation) -> str:
    """Why a mutation cannot be made; empty if it can."""
    path = ROOT / "src" / "fedbnn" / mutation.file
    count = path.read_text(encoding="utf-8").count(mutation.old) if path.exists() else 0
    missing = [test for test in mutation.tests if not (ROOT / test.split("::")[0]).exists()]
    if missing:
        return f"there is no {missing[0]}"
    return "" if count == 1 else f"its text is in {mutation.file} {count} times, and must be there once"


def exit_code(tests: Iterable[str], mutation: Mutation | None = None) -> int:
    """The exit code of these tests, on a copy of the source with the mutation made."""
    with tempfile.TemporaryDirectory(prefix="fedbnn-mutant-") as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        if mutation:
            path = source / "fedbnn" / mutation.file
            path.write_text(path.read_text("utf-8").replace(mutation.old, mutation.new), encoding="utf-8")
        environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        where = "import fedbnn, sys; sys.exit(not fedbnn.__file__.startswith(sys.argv[1]))"
        subprocess.run([sys.executable, "-c", where, folder], env=environment, check=True)
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False)
        return done.returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="mutations whose name has these words")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once")
    arguments = parser.parse_args()
    chosen = [one for one in MUTATIONS if arguments.only in one.name]
    wrong = {one.name: reason for one in chosen if (reason := problem(one))}
    for name, reason in wrong.items():
        print(f"cannot be made  {name}: {reason}", flush=True)
    chosen = [one for one in chosen if one.name not in wrong]
    start = time.monotonic()
    with ThreadPoolExecutor(arguments.jobs) as pool:
        codes = pool.map(lambda one: exit_code(one.tests, one), chosen)
        unbroken = pool.submit(exit_code, sorted({test for one in chosen for test in one.tests}))
        survived = 0
        for one, code in zip(chosen, codes, strict=True):
            verdict = "caught" if code == FAILED else "SURVIVED" if code == 0 else f"cannot be run ({code})"
            survived += code != FAILED
            print(f"{verdict:<15} {one.name}", flush=True)
        if unbroken.result():
            print("the tests fail as they are, without any mutation", flush=True)
    minutes = (time.monotonic() - start) / 60
    print(f"{len(chosen) - survived} of {len(chosen)} caught, {len(wrong)} cannot be made, {minutes:.1f} minutes")
    return int(bool(survived or wrong or unbroken.result() or not chosen))


if __name__ == "__main__":
    sys.exit(main())
