"""How tight the audit is: what it proves of each mechanism's claim at epsilon 3, and whether it refutes less noise.

    python benchmarks/audit.py [--json FILE] [--minutes 10] [--trials 40000] [--workers 2] [--only WORDS]

Each row is `fedbnn privacy audit` of the digits federation; the same once more with 0.8 times the noise, which takes
the place of the releases' noise in worker processes through a copy of the source (as `make mutants` does).
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LESS = "    sd *= 0.8\n"
DRAW = '    if noise == "discrete" and generator is None:\n'  # where all noise on the grid is drawn

NETWORK = ("method=fedbnn_paper", "privacy.mechanism=output_perturbation")  # in fedbnn heads speak, hard to turn around
AVERAGED = ("method=dp_fedavg", 'models=[{name="mlp"}]', "rounds=1")
ROWS: dict[str, tuple[str, ...]] = {
    "dp_teacher": ("privacy.mechanism=dp_teacher",),
    "dp_teacher, 3 releases": ("privacy.mechanism=dp_teacher", "privacy.releases=3"),
    "dp_moments": ("privacy.mechanism=dp_moments",),
    "dp_moments, 3 releases": ("privacy.mechanism=dp_moments", "privacy.releases=3"),
    "output_perturbation": (*NETWORK, "privacy.releases=1"),
    "output_perturbation, 3 releases": (*NETWORK, "privacy.releases=3"),
    "dp_fedavg, all records": (*AVERAGED, "methods.dp_fedavg.sampling_rate=1.0"),
    "dp_fedavg, half of the records": AVERAGED,
    "dp_fedavg, clients": (*AVERAGED, "methods.dp_fedavg.level=user", "methods.dp_fedavg.delta=0.001"),
}


def audited(changes: tuple[str, ...], options: list[str], source: Path) -> dict[str, Any]:
    """What the command says."""
    sets = [part for change in changes for part in ("--set", change)]
    command = [sys.executable, "-m", "fedbnn", "privacy", "audit", *sets, *options, "--json"]
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def with_less_noise(folder: str) -> Path:
    """A copy of the source in which all noise has 0.8 times its deviation."""
    source = Path(folder) / "src"
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
    path = source / "fedbnn" / "privacy" / "sums.py"
    text = path.read_text("utf-8")
    if text.count(DRAW) != 1:
        raise SystemExit("privacy/sums.py draws noise in another way: see DRAW in this file")
    path.write_text(text.replace(DRAW, LESS + DRAW), encoding="utf-8")
    return source


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the rows to this file; those of others in it stay")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--trials", type=int, default=40_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", default="", help="rows whose name has these words")
    arguments = parser.parse_args()
    options = [f"--{name}={getattr(arguments, name)}" for name in ("minutes", "trials", "workers")]
    print(
        "| mechanism | releases | claimed μ | proved μ | of the claim | attacks | minutes | noise x 0.8: proved μ | |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    before = arguments.json and arguments.json.exists()
    rows: dict[str, Any] = json.loads(arguments.json.read_text("utf-8")) if before else {}
    with tempfile.TemporaryDirectory(prefix="fedbnn-audit-") as folder:
        less = with_less_noise(folder)
        for name, changes in ROWS.items():
            if arguments.only not in name:
                continue
            honest, mutant = audited(changes, options, ROOT / "src"), audited(changes, options, less)
            rows[name] = {"honest": honest, "noise x 0.8": mutant}
            verdict = "refuted" if mutant["caught"] else "not refuted"
            print(
                f"| {name} | {honest['releases']} | {honest['mu']:.3f} | {honest['mu_lower']:.3f} | "
                f"{honest['mu_lower'] / honest['mu']:.2f} | {honest['trials']:,} | {honest['seconds'] / 60:.1f} | "
                f"{mutant['mu_lower']:.3f} | {verdict} |",
                flush=True,
            )
            if arguments.json:
                arguments.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
