"""Wrong input is refused before torch is imported: where it cannot be imported, the message is the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

# A command, and a part of the message.
REFUSED = {
    "prune lenett5": "did you mean lenet5",
    "prune lenet5": "pass --weights FILE",
    "prune lenet5 --data digitz": "did you mean digits",
    "prune lenet5 --weights no.pt": "no.pt: this weight file does not exist",
    "prune lenet5 --weights here": "here: is a folder, not a weight file",
    "prune lenet5 --holdout train": "holdout must be train:SHARE",
    "prune lenet5 --mean a,b": "--mean must be numbers",
    "prune --resume no": "no does not exist",
    "prune --resume here": "here holds no run that could continue",
    "train lenett5 --data digits": "did you mean lenet5",
    "train lenet5 --data digitz": "did you mean digits",
    "train lenet5 --data folder:no": "no: this folder of images does not exist",
    "train lenet5 --data digits --preset cosin": "did you mean cosine",
    "train lenet5 --data digits --weights no.pt": "does not exist",
    "train lenet5 --data digits --temperature -1": "temperature must be above 0",
    "train lenet5 --data digits --sparsity-by proximal": "give sparsity as well (--sparsity 1e-4)",
    "train lenet5 --data digits --ema 0.9 --soft-prune 0.2": "ema and soft_prune cannot be combined",
    "train lenet5 --data digits --teacher resnet201": "did you mean resnet20",
    "evaluate lenett5 --data digits": "did you mean lenet5",
    "evaluate lenet5 --data digits --part tset": "did you mean test",
    "evaluate lenet5 --data digits --pruned no": "no does not exist",
    "evaluate lenet5 --data digits --weights w.txt": "expected a weight file .safetensors",
    "score lenett5 --data digits": "did you mean lenet5",
    "score lenet5 --data digits --metric gsdd": "did you mean gsd",
    "score lenet5 --data digits --metric l1,gsdd:ridge=1": "did you mean gsd",
    "score lenet5 --data digits --streams cuopled": "did you mean coupled",
    "sensitivity lenett5": "did you mean lenet5",
    "sensitivity lenet5 --weights no.pt": "does not exist",
    "sensitivity lenet5 --cost mac": "did you mean macs",
    "sensitivity lenet5 --split unifrom": "did you mean uniform",
    "show channels lenett5": "did you mean lenet5",
    "show channels lenet5 --metrics gsdd": "did you mean gsd",
    "show separation lenet5 --points 2 --each 3": "points must be at least each",
    "inspect lenett5": "did you mean lenet5",
    "inspect lenet5 --plan no.json": "no.json does not exist",
    "inspect lenet5 --streams both": "streams must be one of",
    "export lenett5 a.onnx": "did you mean lenet5",
    "export lenet5 a.onxn": "did you mean onnx",
    "export no/folder a.onnx": "there is no such folder",
    "bench lenet5=no.pt": "does not exist",
    "bench lenet5 --engine onnxrumtime": "did you mean onnxruntime",
    "bench lenet5 --batch 0": "batch must be at least 1",
    "data get cifar11": "did you mean cifar10",
    "data get cifar100 --from no.tar": "no.tar does not exist",
    "report no": "no does not exist",
    "reproduce resnet56-cifar10": "did you mean resnet56-cifar10-",
    "reproduce tabel1": "did you mean table1",
    "reproduce fig1-lenet5-mnist --budget smok": "did you mean smoke",
    "study table --format markdwn": "did you mean markdown",
    "study effectiveness lenet5 --data digits": "lenet5=FILE",
    "study effectiveness lenet5=no.pt --data digits": "does not exist",
    "study effectiveness lenet5=w.pt --data digits --ratios 2": "ratios must be fractions",
    "study sensitivity lenet5=w.pt --data digits --end 3": "end must be above 0",
    "study timing lenet5 --data digits --metrics gsdd": "did you mean gsd",
    "study table no": "no does not exist",
    "study structure lenett5 --widths 3": "did you mean lenet5",
    "study structure lenet5 --by blocks": "did you mean block",
}
SCRIPT = """
import json, sys
sys.modules["torch"] = None  # importing it raises ImportError
from typer.testing import CliRunner
from prunus.cli import build
found = {}
for line in json.load(sys.stdin):
    result = CliRunner(env={"COLUMNS": "500", "TERM": "dumb"}).invoke(build(), line.split())
    found[line] = [result.exit_code, repr(result.exception), result.stderr]
json.dump(found, sys.stdout)
"""


def test_wrong_input_is_refused_without_torch(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "w.pt").touch()
    (tmp_path / "w.txt").touch()
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps([*REFUSED, "--help", "prune --help", "study effectiveness --help"]),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
    )
    found = json.loads(ran.stdout)
    wrong = [
        (line, *found[line])
        for line, words in REFUSED.items()
        if found[line][0] != 1 or not found[line][2].startswith("error: ") or words not in found[line][2]
    ]
    assert not wrong
    assert [code for line, (code, _, _) in found.items() if line.endswith("--help")] == [0, 0, 0]
