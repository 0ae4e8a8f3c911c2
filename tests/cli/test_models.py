"""`prunus models`: exact lines and exit codes."""

from __future__ import annotations

from tests.cli.command_line import lines, prunus


def test_models_are_listed_with_their_cost() -> None:
    said = lines(prunus("models"))
    assert said[0].split() == ["name", "input", "classes", "MACs", "weights", "params"]
    by_name = {line.split()[0]: line.split() for line in said}
    assert by_name["resnet56"][1:9] == ["3x32x32", "10", "125.49", "M", "0.85", "M", "0.85", "M"]
    assert by_name["vgg16_imagenet"][1:9] == ["3x224x224", "1000", "15.47", "G", "138.34", "M", "138.36", "M"]
    assert sum(line.split()[0] in by_name and "x" in line.split()[1] for line in said[1:21]) == 20
    assert max(len(line) for line in said) <= 80
    assert any(line.startswith("zero-padded shortcuts: resnet8, resnet14") for line in said)


def test_one_model_for_other_classes() -> None:
    said = lines(prunus("models", "resnet20", "--classes", "100"))
    assert said[1].split()[:5] == ["resnet20", "3x32x32", "100", "40.56", "M"]


def test_an_unknown_model_is_one_line_and_exit_code_1() -> None:
    done = prunus("models", "resnet21")
    assert done.exit_code == 1
    assert done.stdout == ""
    assert (
        done.stderr.startswith("error: there is no model called 'resnet21': did you mean ")
        and "resnet20" in done.stderr
    )
