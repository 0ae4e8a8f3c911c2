"""What to cite for a metric."""

from __future__ import annotations

import re

import pytest

import prunus as pr
from prunus.errors import ScoreError
from prunus.scoring.metrics import METRICS, references


def test_every_metric_has_entries_that_exist() -> None:
    """All but random scores, which nobody need be cited for; and no entry is there in vain."""
    cited = {name: METRICS[name].cites for name in METRICS}
    assert [name for name, keys in cited.items() if not keys] == ["random"]
    assert {key for keys in cited.values() for key in keys} == set(references())


def test_entries_are_whole() -> None:
    for key, entry in references().items():
        fields = dict(re.findall(r"^  (\w+)\s*= \{(.*)\},?$", entry, flags=re.MULTILINE))
        assert entry.startswith("@") and entry.endswith("\n}") and entry.count("{") == entry.count("}")
        assert {"title", "author"} <= set(fields) and (key == "prunus" or fields["year"] in key)
        assert len(entry.splitlines()) == len(fields) + 2


def test_years_and_first_authors_are_those_of_the_help() -> None:
    """ "L1 norm of the filters (Li et al. 2017)" cites an entry of 2017 whose first author is Li."""
    told = 0
    for name in METRICS:
        for author, year in re.findall(r"(\w+)(?: et al\.|, \w+ and \w+) (\d{4})\)", METRICS.help(name)):
            entries = [references()[key] for key in METRICS[name].cites]
            assert any(re.search(rf"author\s*= \{{{author},", e) and f"{{{year}}}" in e for e in entries), name
            told += 1
    assert told >= 12


def test_bibtex_lists_each_entry_once_and_the_paper_first() -> None:
    found = re.findall(r"^@\w+\{([^,]+),", pr.bibtex(["l1", "gsd:ridge=0", "l2", "nisp"]), flags=re.MULTILINE)
    assert found == ["liu2020rethinking", "prunus", "li2017pruning", "yu2018nisp", "roffo2015infinite"]
    with pytest.raises(ScoreError, match="did you mean gsd"):
        pr.bibtex(["gsb"])
