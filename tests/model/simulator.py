"""Run the model's simulator, Quint, which npm installs beside the model."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.model.traces import Trace, from_itf

MODEL = Path(__file__).parents[2] / "model"
QUINT = MODEL / "node_modules" / ".bin" / "quint"

#: What has to hold in every state of the model.
INVARIANTS = (
    "endedByItsClaim",
    "livingOwnersKeepTheirJobs",
    "noJobIsStuck",
    "oneJobOfAKey",
    "attemptsAreCounted",
)


def install() -> None:
    """Install the simulator, unless it is there."""
    if QUINT.exists():
        return
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError("the simulator of the model is installed by npm: install Node.js")
    command = [npm, "install", "--no-audit", "--no-fund", "--no-package-lock"]
    subprocess.run(command, cwd=MODEL, check=True, capture_output=True, timeout=90)


def quint(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Quint with these arguments."""
    install()
    return subprocess.run(
        [str(QUINT), *arguments], cwd=MODEL, capture_output=True, text=True, check=False
    )


def simulate(configuration: str, *, samples: int, steps: int, seed: int) -> set[str]:
    """Look for a state in which an invariant does not hold; return the names of those."""
    done = quint(
        *("run", "configurations.qnt", "--backend=typescript", f"--main={configuration}"),
        *(f"--max-samples={samples}", f"--max-steps={steps}", f"--seed={seed}", "--verbosity=1"),
        *("--invariants", *INVARIANTS),
    )
    broken = set(re.findall(r"❌ (\w+)", done.stdout))
    if not broken and "No violation found" not in done.stdout:
        raise RuntimeError(done.stdout + done.stderr)
    return broken


def make_traces(configuration: str, *, count: int, steps: int, seed: int) -> list[Trace]:
    """Simulate runs of the model, and return them."""
    with tempfile.TemporaryDirectory() as folder:
        done = quint(
            *("run", "configurations.qnt", "--backend=typescript", f"--main={configuration}"),
            *("--mbt", f"--out-itf={folder}/{{seq}}.json", f"--n-traces={count}"),
            *(f"--max-samples={count}", f"--max-steps={steps}", f"--seed={seed}", "--verbosity=0"),
        )
        if done.returncode:
            raise RuntimeError(done.stdout + done.stderr)
        return [from_itf(path.read_text("utf-8")) for path in sorted(Path(folder).iterdir())]
