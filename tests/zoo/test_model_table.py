"""The stored table of the built-in networks is that of the networks themselves."""

from __future__ import annotations

import subprocess
import sys

from prunus.zoo import models
from prunus.zoo.models import totals
from prunus.zoo.names import known_models


def test_the_table_is_right() -> None:
    table = known_models()
    assert tuple(table) == models.names()
    for name, known in table.items():
        config, cost = models.config(name), totals(name)
        assert (known.shape, known.classes, known.about) == (config.shape, config.num_classes, config.about)
        assert (known.macs, known.weights, known.parameters) == (cost.macs, cost.weights, cost.parameters)


def test_listing_and_refusals_need_no_torch() -> None:
    code = """
import sys
from typer.testing import CliRunner
from prunus.cli import build
done = CliRunner().invoke(build(), sys.argv[1:])
assert "torch" not in sys.modules, "torch was imported"
print(done.output)
sys.exit(done.exit_code)
"""
    for words, status, said in (
        (["models"], 0, "resnet56"),
        (["prune", "--target", "2"], 1, "target must be"),
        (["prune", "resnet8", "--metric", "gsdd"], 1, "gsd"),
        (["prune", "resnet8", "--preset", "nothing"], 1, "nothing"),
        (["prune", "resnet8", "--batch-size", "0"], 1, "batch_size must be at least 1"),
    ):
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
        assert done.returncode == status and said in done.stdout, (words, done.stdout, done.stderr)
