"""Coverage-guided fuzzing of the targets of `tests/fuzz` by atheris, where that installs. Part of `make soak`.

    python tests/soak/guided.py [--seconds 20] [--only TARGET] [--out FOLDER]

Where `tests/soak/fuzz.py` makes inputs that look like what is expected, here whatever reaches a new line is kept
and changed further. Each target has a process of its own and begins with its valid inputs. An input at which
something else than a UserError or a BadMessage is raised, which takes longer than 20 seconds, or more than 2 GiB, is
kept in FOLDER; `python tests/soak/fuzz.py --only TARGET --replay FILE` reads it again.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

FUZZER = "atheris"
LIMITS = ("-timeout=20", "-rss_limit_mb=2048", "-max_len=65536", "-verbosity=0", "-print_final_stats=1")
_EXECUTED = re.compile(r"stat::number_of_executed_units:\s*(\d+)")


def child(name: str, folder: Path, options: Sequence[str]) -> None:
    """Fuzz one target in this process, which ends with it."""
    import atheris

    with atheris.instrument_imports(include=["fedbnn"], enable_loader_override=False):
        from tests.fuzz.targets.every import TARGETS
        from tests.fuzz.targets.target import tried

        prepared = TARGETS[name].prepare(folder / "home")
    (folder / "valid").mkdir()
    for number, valid in enumerate(prepared.valid):
        (folder / "valid" / str(number)).write_bytes(valid)
    os.environ["TMPDIR"] = str(folder)
    atheris.Setup([name, *options, str(folder / "valid")], lambda data: tried(prepared, bytes(data)))
    atheris.Fuzz()


def fuzzed(name: str, seconds: int, seed: int, out: Path) -> tuple[int, str]:
    """How many inputs a target has read, and what went wrong in one line; empty where nothing did."""
    kept = out / f"{name.replace(' ', '-')}-"
    options = [*LIMITS, f"-max_total_time={seconds}", f"-seed={seed}", f"-artifact_prefix={kept}"]
    with tempfile.TemporaryDirectory(prefix="fedbnn-guided-") as folder:
        (Path(folder) / "home").mkdir()
        command = [sys.executable, __file__, "--child", name, folder, *options]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace", check=False)
    count = _EXECUTED.search(done.stderr)
    if done.returncode == 0 and count:
        return int(count[1]), ""
    told = [line for line in done.stderr.splitlines() if line.strip()]
    why = next((line for line in told if "Error" in line or "Exception" in line or "ERROR" in line), told[-1:])
    return int(count[1]) if count else 0, f"exit code {done.returncode}: {' '.join(str(why).split())[:300]}"


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], Path(sys.argv[3]), sys.argv[4:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=20, help="for each target")
    parser.add_argument("--only", metavar="TARGET", help="as in fuzz.py")
    parser.add_argument("--seed", type=int, default=1, help="of the fuzzer; 0 would be a random one")
    parser.add_argument("--out", type=Path, default=Path("build/fuzz"), help="where inputs go that are problems")
    arguments = parser.parse_args()
    if find_spec(FUZZER) is None:
        print(f"{FUZZER} is not installed (pip install {FUZZER}; Linux on x86, CPython): nothing was fuzzed")
        return 0
    from tests.fuzz.targets.every import TARGETS

    if arguments.only and arguments.only not in TARGETS:
        parser.error(f"--only {arguments.only}: there are {', '.join(TARGETS)}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    names = [arguments.only] if arguments.only else list(TARGETS)
    total, problems = 0, 0
    for name in names:
        count, problem = fuzzed(name, arguments.seconds, arguments.seed, arguments.out.resolve())
        total, problems = total + count, problems + bool(problem)
        print(f"{name:<20} {count:>8} inputs  {problem or 'no problem'}", flush=True)
    print(f"{total} inputs to {len(names)} targets, {problems} with a problem, seed {arguments.seed}")
    return int(problems > 0)


if __name__ == "__main__":
    sys.exit(main())
