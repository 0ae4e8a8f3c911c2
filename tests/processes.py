"""Starting other Python processes from tests: they import this checkout, on one thread each, and must end well."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PATHS = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": PATHS}
LONGEST = 600  # seconds; the slowest takes half a minute on an idle machine, and a busy one is no error


def python(*arguments: object, **variables: str) -> str:
    """What `python ARGUMENTS` prints; `variables` are added to its environment."""
    command = [sys.executable, *map(str, arguments)]
    environment = {**ENVIRONMENT, **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LONGEST, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def torchrun(*arguments: object) -> str:
    """What `torchrun --nproc-per-node 2 -m ARGUMENTS` prints."""
    return python("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", *arguments)
