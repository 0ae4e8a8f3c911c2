"""The paper's Tables 1 and 2: rows read off the paper once more, and figures that must agree with each other."""

from __future__ import annotations

import pytest

from prunus.studies.recipes import PublishedGroup, PublishedRow, group_of, published
from prunus.zoo import models
from prunus.zoo.models import totals

GROUPS = published().groups


def rows(model: str, data: str) -> dict[str, PublishedRow]:
    group = group_of(model, data)
    assert group is not None
    return {row.method: row for row in group.rows}


def test_every_row_of_both_tables_is_there() -> None:
    counts = {(group.table, group.network): len(group.rows) for group in GROUPS}
    assert counts == {
        ("1a", "VGG-16"): 4,
        ("1a", "ResNet-56"): 9,
        ("1a", "ResNet-110"): 6,
        ("1b", "VGG-19"): 2,
        ("1b", "ResNet-164"): 4,
        ("2", "VGG-16"): 7,
        ("2", "ResNet-50"): 8,
    }
    methods = {row.method for group in GROUPS for row in group.rows}
    others = "L1 GAL SSS NISP DCP TAS FPGM KSE SLIM LCCN DI CP RNP FBS ThiNet SFP"
    assert methods == {*others.split(), "G-SD", "G-SD-A", "G-SD-B"}


def test_some_rows_as_the_paper_prints_them() -> None:
    ours = rows("resnet56", "cifar10")["G-SD-B"]
    assert ours == PublishedRow(
        "G-SD-B", "the paper", 93.40, 93.84, -0.44, None, None, None, 46_000_000, 63.0, 407_000, 52.4
    )
    thinet = rows("resnet50", "imagenet:some/folder")["ThiNet"]
    assert thinet == PublishedRow(
        "ThiNet", "Luo et al. 2017", 72.88, 72.04, 0.84, 91.14, 90.67, 0.47, 2_440_000_000, 40.3, 16_940_000, 33.6
    )
    fpgm = rows("resnet110", "cifar10")["FPGM"]
    assert (fpgm.quality, fpgm.macs, fpgm.params, fpgm.params_removed) == (93.74, 121_000_000, None, None)
    cp = rows("vgg16_imagenet", "imagenet")["CP"]
    assert (cp.quality, cp.base_top5, cp.top5, cp.top5_drop, cp.macs_removed) == (None, 89.90, 89.90, 0.0, 50.0)
    di = rows("preresnet164", "cifar100")["DI"]
    assert (di.base_top1, di.quality, di.macs, di.params) == (76.63, 76.11, 105_000_000, 950_000)
    assert group_of("resnet56", "cifar100") is None and group_of("vgg16", "imagenet") is None


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: f"{group.table}-{group.network}")
def test_drops_are_the_differences(group: PublishedGroup) -> None:
    """To the printed two digits, but for the one row that the notes name."""
    for row in group.rows:
        for base, after, drop in (
            (row.base_top1, row.quality, row.top1_drop),
            (row.base_top5, row.top5, row.top5_drop),
        ):
            assert (base is None) == (after is None) == (drop is None)
            if base is None or after is None or (group.network, row.method, drop) == ("ResNet-50", "GAL", 1.97):
                continue
            assert drop == pytest.approx(base - after, abs=1e-9)


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: f"{group.table}-{group.network}")
def test_shares_belong_to_the_network(group: PublishedGroup) -> None:
    """What is left and the share removed give the cost of prunus's own network of that name, to printed digits."""
    classes = {"cifar10": 10, "cifar100": 100, "imagenet": 1000}[group.data]
    whole = totals(group.models[0], classes)
    odd = {("VGG-16", "L1"), ("VGG-16", "SSS"), ("ResNet-56", "KSE")} if group.table == "1a" else set()
    for row in group.rows:
        assert (row.params is None) == (row.params_removed is None)
        if (group.network, row.method) in odd:
            continue
        assert row.macs is not None and row.macs_removed is not None
        assert row.macs / (1 - row.macs_removed / 100) == pytest.approx(whole.macs, rel=0.03)
        if row.params is not None and row.params_removed is not None:
            assert row.params / (1 - row.params_removed / 100) == pytest.approx(whole.weights, rel=0.03)


def test_the_names_are_networks_that_prunus_knows() -> None:
    known = set(models.names())
    for group in GROUPS:
        assert {name for name in group.models if ":" not in name} <= known
        assert group.models[0] in known
