"""Wrong input is one line on stderr and exit code 1, and is refused before torch is imported where it can be."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from prunus.zoo.models import create
from tests.cli.command_line import lines, prunus

# A command, and a part of the message.
WITHOUT_TORCH = {
    "prune lenett5": "did you mean lenet5",
    "prune lenet5 --data digits": "pass --weights FILE with the weights of lenet5",
    "prune lenet5 --weights w.pt": "lenet5 needs images: give --data NAME (digits, ",
    "prune --data cifar10": "name the network to prune: prunus prune MODEL",
    "prune lenet5 --data digitz": "did you mean digits",
    "prune lenet5 --weights no.pt": "no.pt: this weight file does not exist",
    "prune lenet5 --weights here": "here: is a folder, not a weight file",
    "prune lenet5 --holdout train": "holdout must be train:SHARE",
    "prune lenet5 --mean a,b": "expected numbers separated by commas",
    "prune lenet5 --data digits --weights w.pt --target 2": "target must be above 0 and below 1, got 2.0",
    "prune lenet5 --data digits --weights w.pt --batch-size 0": "batch_size must be at least 1, got 0",
    "prune lenet5 --data digits --weights w.pt --ema 0.9": "No such option",
    "prune lenet5 --data digits --weights w.pt --threads 9999": "threads must be at least 1 and at most ",
    "prune lenet5=pretrained --data digits": "for another network give --weights FILE",
    "prune timm:resnet18 --data digits": "with the weights of timm:resnet18, or name timm:resnet18=pretrained",
    "prune timm:resnet18=pretrained --data digits --weights w.pt": "has its own weights: leave out --weights w.pt",
    "prune lenet5 --data digits --weights w.pt --set memory=lots": "memory must be a size such as 4G or 500M",
    "prune lenet5 --data digits --weights w.pt --target nan": "target must be above 0 and below 1, got nan",
    "prune lenet5 --data digits --weights w.pt --out w.txt": "w.txt is a file; name a folder for a pruning run",
    "prune lenet5 --data digits --weights w.pt --task detektion": "there is no task called 'detektion'",
    "prune pruned --target 0.3": "pruned does not record its original network: give that too, as in NAME=pruned",
    "evaluate pruned": "as in NAME=pruned",
    "inspect pruned": "as in NAME=pruned",
    "curve lenet5 --data digits": "pass --weights FILE with the weights of lenet5",
    "curve lenet5 --data digits --weights w.pt --speedups a,b": "expected numbers separated by commas",
    "prune --resume no": "no does not exist",
    "prune --resume here": "here holds no run that could continue",
    "train lenett5 --data digits": "did you mean lenet5",
    "train lenet5": "lenet5 needs images",
    "train lenet5 --data digitz": "did you mean digits",
    "train lenet5 --data folder:no": "no: this folder of images does not exist",
    "train lenet5 --data digits --preset cosin": "did you mean cosine",
    "train lenet5 --data digits --weights no.pt": "does not exist",
    "train lenet5 --data digits --temperature -1": "temperature must be above 0",
    "train lenet5 --data digits --lr 0": "lr must be above 0, got 0.0",
    "train lenet5 --data digits --seed -1": "seed must be at least 0, got -1",
    "train lenet5 --data digits --workers -1": "workers must be at least 0, got -1",
    "train lenet5 --data digits --sparsity-by proximal": "give sparsity as well (--sparsity 1e-4)",
    "train lenet5 --data digits --ema 0.9 --soft-prune 0.2": "ema and soft_prune cannot be combined",
    "train lenet5 --data digits --teacher resnet201": "did you mean resnet20",
    "train lenet5 --data digits --teacher lenet5": "would be untrained: give its weight file as lenet5=FILE",
    "evaluate lenett5 --data digits": "did you mean lenet5",
    "evaluate lenet5": "lenet5 needs images",
    "evaluate lenet5= --data digits": "lenet5=: expected NAME=WEIGHTS, as in resnet56=resnet56.safetensors",
    "evaluate lenet5=w.pt --data digits --weights w.pt": "lenet5=w.pt has its own weights: leave out --weights",
    "evaluate lenet5 --data digits --part tset": "did you mean test",
    "evaluate lenet5 --data digits --weights w.txt": "expected a weight file .safetensors",
    "inspect lenett5": "did you mean lenet5",
    "inspect lenet5 --streams both": "streams must be one of",
    "inspect lenet5 --data digits": "--data belongs to --scores or --sensitivity: give that too, or leave --data out",
    "inspect lenet5 --latency --k 2": "--k belongs to --sensitivity",
    "inspect lenet5 --scores l1 --data digits --engine eager": "--engine belongs to --latency",
    "inspect lenet5 --scores l1 --latency": "give only one of --scores and --latency",
    "inspect --latency": "--latency needs a network",
    "inspect lenet5 --scores l1 --data digits --classes 3": "--classes is for a network without a data set",
    "inspect lenet5 --scores l1": "lenet5 needs images",
    "inspect lenet5 --data digits --scores gsdd": "did you mean gsd",
    "inspect lenet5 --data digits --scores l1,gsdd:ridge=1": "did you mean gsd",
    "inspect lenet5 --data digits --scores l1 --streams cuopled": "did you mean coupled",
    "inspect lenet5 --data digits --scores l1 --part all": "part must be one of train, holdout, test; got 'all'",
    "inspect lenet5 --data digits --scores l1 --tap writer": "tap must be one of reader, before_activation",
    "inspect lenet5 --sensitivity --weights no.pt": "does not exist",
    "inspect lenet5 --data digits --sensitivity --cost mac": "did you mean macs",
    "inspect lenet5 --data digits --sensitivity --split unifrom": "did you mean uniform",
    "inspect lenet5 --data digits --sensitivity --metric gsdd": "there is no metric called 'gsdd'",
    "inspect lenet5 --data digits --sensitivity --alpha -1": "alpha must be above 0",
    "inspect lenet5 --data digits --sensitivity --measure f1": "measure must be",
    "inspect lenet5 --data digits --sensitivity --repair glue": "repair must be one of none, solve; got 'glue'",
    "inspect lenet5 --data digits --sensitivity --num-repair-images 0": "num_repair_images must be at least 1",
    "inspect lenet5 --latency --engine abacus": "no engine called 'abacus'",
    "inspect lenet5 --latency --batch 0": "batch must be at least 1, got 0",
    "check lenet5 --engine abacus": "no engine called 'abacus'",
    "show channels lenett5": "did you mean lenet5",
    "show chanels lenet5": "did you mean channels",
    "show channels lenet5 --metrics gsdd": "did you mean gsd",
    "show channels lenet5 --data digits --points 20": "--points is not an option of the picture channels",
    "show channels lenet5 --part tests": "part must be one of train, holdout, test",
    "show separation lenet5 --points 2 --each 3": "points must be at least each",
    "export lenett5 a.onnx": "did you mean lenet5",
    "export lenet5 a.onxn": "did you mean onnx",
    "export lenet5 a.exe": "onnx, pt2, safetensors",
    "export lenet5 a.pt2 --fixed-batch 0": "fixed_batch must be at least 1, got 0",
    "export lenet5 a.pt2 --num-images 0": "num_images must be at least 1, got 0",
    "export lenet5 a.pt2 --int8": "ends in .onnx",
    "export lenet5 a.onnx --int8": "give --data",
    "export lenet5 a.onnx --int8 --data digits --opset 18": "neither --opset nor",
    "export here a.onnx": "here is a folder without plan.json",
    "export no/folder a.onnx": "there is no such folder",
    "bench lenet5=no.pt": "does not exist",
    "bench small.tflite": "small.tflite is no .onnx file",
    "prune small.tflite --data digits": "NAME=small.tflite if the file has the weights",
    "bench lenet5 --engine onnxrumtime": "did you mean onnxruntime",
    "bench lenet5 --batch 0": "batch must be at least 1",
    "bench lenet5 --rounds 0": "rounds must be at least 1, got 0",
    "bench lenet5 --threads 100000": "threads must be at least 1 and at most ",
    "data cifar11": "did you mean cifar10",
    "data cifar100 --from no.tar": "no.tar does not exist",
    "data --to here": "name it, as in prunus data cifar10 --to data",
    "report no": "no does not exist",
    "report here no": "no does not exist",
    "reproduce resnet56-cifar10": "did you mean resnet56-cifar10-",
    "reproduce tabel1": "did you mean table1",
    "reproduce fig1-lenet5-mnist --budget smok": "did you mean smoke",
    "reproduce fig1-lenet5-mnist --set =3": "--set takes KEY=VALUE",
    "study effectiveness lenet5 --data digits": "give the weight file of lenet5 as lenet5=FILE",
    "study effectiveness lenet5=no.pt --data digits": "does not exist",
    "study effectiveness lenet5=w.pt": "lenet5=w.pt needs images",
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
found, app = {}, build()
for line in json.load(sys.stdin):
    result = CliRunner(env={"COLUMNS": "500", "TERM": "dumb"}).invoke(app, line.split())
    found[line] = [result.exit_code, repr(result.exception), result.stderr]
json.dump(found, sys.stdout)
"""


def test_wrong_input_is_refused_without_torch(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "w.pt").touch()
    (tmp_path / "w.txt").touch()
    (tmp_path / "small.tflite").touch()
    (tmp_path / "pruned").mkdir()
    (tmp_path / "pruned" / "plan.json").touch()
    (tmp_path / "pruned" / "model.safetensors").touch()
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps([*WITHOUT_TORCH, "--help", "prune --help", "study effectiveness --help"]),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
    )
    found = json.loads(ran.stdout)
    wrong = [
        (line, *found[line])
        for line, words in WITHOUT_TORCH.items()
        # What typer refuses itself has exit code 2.
        if found[line][0] != (2 if words == "No such option" else 1) or words not in found[line][2]
    ]
    assert not wrong
    assert [code for line, (code, _, _) in found.items() if line.endswith("--help")] == [0, 0, 0]


USERS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, fault, num_classes):
        super().__init__()
        self.conv, self.fc, self.fault = nn.Conv2d(1, 6, 3), nn.Linear(6, num_classes), fault
    def forward(self, x):
        if self.fault == "forward":
            raise KeyError("oops")
        return self.fc(self.conv(x).mean((2, 3)))

def good(num_classes=10): return Net("", num_classes)
def stumbles(num_classes=10): return Net("forward", num_classes)
def raises(num_classes=10): raise ValueError("boom")
def needs(path, num_classes=10): return Net("", num_classes)
def rgb(num_classes=10): return Net("", num_classes)
def linear(num_classes=10): return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))
def pairs(*shape, count=2, last=9): return [(torch.zeros(8, *shape), torch.arange(last - 7, last + 1))] * count
def metric(channels): return {}["no"]
def none(): return None
def empty(): return [], []
def once(): return iter(pairs(1, 8, 8)), pairs(1, 8, 8)
def text(): return "train", "holdout"
def coloured(): return pairs(1, 8, 8), pairs(3, 8, 8)
def labelled(): return pairs(1, 8, 8), pairs(1, 8, 8, last=30)
def unreadable():
    class Disk(torch.utils.data.Dataset):
        def __len__(self): return 8
        def __getitem__(self, number): raise OSError("the disk is gone")
    return [torch.utils.data.DataLoader(Disk(), 4)] * 2
for factory in (good, stumbles, raises, linear):
    factory.shape = (1, 8, 8)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trial_nets.py").write_text(USERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "trial_nets", raising=False)
    state = create("lenet5").state_dict()
    save_file(state, "w.safetensors")
    save_file({name: torch.full_like(tensor, torch.nan) for name, tensor in state.items()}, "nan.safetensors")
    torch.save({}, "empty.pt")


PRUNE = "prune lenet5=w.safetensors --data digits"
OWN = "prune trial_nets:good --target 0.3 --data trial_nets"
SENSITIVITY = "inspect lenet5=w.safetensors --data digits --sensitivity --num-images 60 --num-eval-images 40"


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("evaluate lenet5 --data digits --size 5", "lenet5 does not run on an image of 1 x 5 x 5: RuntimeError"),
        ("evaluate trial_nets:stumbles --data digits", "does not run on an image of 1 x 8 x 8: KeyError: 'oops'"),
        ("train trial_nets:stumbles --data digits", "trial_nets.py:11)"),
        ("bench trial_nets:stumbles", "does not run on an image of 1 x 8 x 8"),
        ("bench lenet5 resnet20", "different sizes"),
        ("report .", "is not the folder of a run"),
        ("inspect trial_nets:needs", "missing a required argument: 'path'. Give its parameters defaults"),
        ("inspect trial_nets:rgb", "trial_nets.py:12). What it takes can be said: factory.shape = (channels, height"),
        ("inspect trial_nets:raises", "'trial_nets:raises' failed with ValueError: boom"),
        ("inspect trial_nets:nothing", "nothing"),
        ("inspect lenet5 --classes 1000000000000", "there is not enough memory: "),
        ("inspect trial_nets:linear --data digits --scores l1", "there is nothing to score"),
        ("inspect lenet5 --data digits --scores gsd:ridge", "an option of a metric must be NAME=VALUE"),
        ("inspect lenet5 --data digits --scores gsd:rho=1", "gsd has no option 'rho'"),
        (f"{SENSITIVITY} --k 100", "k must lie between 1 and"),
        (f"{SENSITIVITY} --exclude *", "no unit is left to prune"),
        (f"{SENSITIVITY} --holdout none", "has no holdout images"),
        ("evaluate trial_nets:rgb --data digits", "is for images of 3 channels, and these have 1: set rgb.shape ="),
        ("evaluate lenet5 --data digits --size 1000000", "there is not enough memory: "),
        ("evaluate lenet5 --data digits --device abacus", "device 'abacus' cannot be used"),
        (f"{PRUNE} --mean 1,2", "mean must be one finite number, got [1.0, 2.0]"),
        (f"{PRUNE} --holdout none", "test (359). Hold some out: --holdout train:0.1"),
        (f"{PRUNE} --target 0.999", "can be removed"),
        (f"{PRUNE} --classes 3,cat", "there is no class of digits called 'cat'"),
        (f"{PRUNE} --task regression", "give a goal: speedup, target"),
        (f"{PRUNE} --macs 9G", "meets the goal already"),
        (f"{PRUNE} --macs many", "expected a number such as 63M, 400K or 2.3G, got 'many'"),
        (f"{PRUNE} --target 0.5 --ratio 0.5", "give one goal, not 2: target, ratio"),
        (f"{PRUNE} --set k=50", "k must lie between 1 and"),
        (f"{PRUNE} --set preset=sine --epochs 1", "no training preset called 'sine'"),
        (f"{PRUNE} --repair glue", "there is no repair called 'glue'"),
        (f"{PRUNE} --metric gds:ridge=0", "there is no metric called 'gds': did you mean gsd"),
        (f"{PRUNE} --metric gsd:rigde=0", "gsd has no option 'rigde' (did you mean ridge?)"),
        (f"{PRUNE} --metric gsd:ridge=-1", "ridge must be a number of at least 0, got -1.0"),
        (f"{PRUNE} --metric gsd:0", "an option of a metric must be NAME=VALUE, as in ridge=0.5, got '0'"),
        (f"{PRUNE} --paper --repair solve", "the paper has no repair: leave out --repair solve, or leave out --paper"),
        (f"{PRUNE} --split least_error --metric gsd", "needs scores that are errors, and gsd gives none: use rebuilt"),
        (f"{PRUNE} --metric trial_nets:metric --out mine", "error: KeyError: 'no' ("),
        (f"{OWN}:none", "'trial_nets:none' must return loaders (train, holdout)"),
        (f"{OWN}:empty", "train: the loader gave no images"),
        (f"{OWN}:once", "train of 'trial_nets:once' is a list_iterator, which can be read only once"),
        (f"{OWN}:text", "train: batch 0 must be images, a pair (images, labels) or a dict with both, but is a str"),
        (f"{OWN}:coloured", "holdout: the network does not run on its images, [3, 8, 8] (those of train: [1, 8, 8])"),
        (f"{OWN}:labelled", "holdout: batch 0 has labels from 23 to 30, but the model has 10 classes"),
        (f"{OWN}:unreadable", "train: its first batch cannot be read: OSError: the disk is gone ("),
        ("check trial_nets:good --data trial_nets:once", "which can be read only once"),
        ("evaluate trial_nets:good --data trial_nets:empty --part holdout", "train: the loader gave no images"),
        ("evaluate trial_nets:good --data trial_nets:coloured", "has no test images; it returned train, holdout"),
        ("train trial_nets:good --data trial_nets:unreadable", "the disk is gone"),
        ("train lenet5 --data digits --weights nan.safetensors", "numbers of conv1.weight are NaN or infinite"),
        ("prune lenet5=nan.safetensors --data digits --target 0.3", "the network's weights are damaged, or its train"),
        ("prune lenet5=empty.pt --data digits", "empty.pt: expected tensors by name, got no tensors: save the network"),
        ("prune trial_nets:good --data folder:nan.safetensors", "nan.safetensors: is a file, and not a CSV of labels"),
        ("prune trial_nets:good --data folder:.", "expected one folder per class, or images without labels"),
        ("train lenet5 --data digits --mixed-precision fp16", "fp16 needs a GPU"),
        ("train resnet8 --data digits --num-images 1 --size 1", "a batch norm cannot be trained on a single image"),
        ("data cifar10 --from trial_nets.py --to new", "trial_nets.py: is not a complete tar archive (ReadError: "),
        ("show channels lenet5=w.safetensors --data digits --layer conv9", "did you mean conv"),
        ("study sensitivity lenet5=w.safetensors --data digits --metric gsd:rigde=0", "gsd has no option 'rigde'"),
    ],
)
def test_one_line_that_says_what_is_wrong(line: str, words: str) -> None:
    found = prunus(*line.split(), columns=500)
    assert found.exit_code == 1
    (said,) = [text for text in found.stderr.splitlines() if text.startswith("error: ")]
    assert words in said
    assert not (line.startswith((PRUNE, OWN)) and Path("runs").exists())


@pytest.mark.usefixtures("here")
def test_an_empty_name_and_outputs_that_are_not_finite() -> None:
    found = prunus("evaluate", "", "--data", "digits")
    assert found.exit_code == 1 and found.stderr == "error: the name of the network is empty\n"
    found = prunus("evaluate", "lenet5", "--data", "digits", "--weights", "nan.safetensors", "--json", columns=200)
    assert "warning: the network's outputs are NaN or infinite" in found.stderr
    assert json.loads("\n".join(lines(found)), parse_constant=pytest.fail)["loss"] is None


@pytest.mark.usefixtures("here")
def test_brackets_in_names_are_printed_as_they_are() -> None:
    words = ["prune", "trial_nets:good", "--data", "digits", "--ratio", "0.3", "--epochs", "0", "--out"]
    found = lines(prunus(*words, "a [red] b [/]", columns=200))
    assert "results in a [red] b [/]: model.safetensors, plan.json, summary.json" in found


def test_usage_errors_have_exit_code_2() -> None:
    for line in ("prune --colour red", "prune --epochs many", "inspect resnet8 --alpha three", "evaluate"):
        assert prunus(*line.split()).exit_code == 2
