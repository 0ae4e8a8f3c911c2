"""Lists in the text of a command line option."""

from __future__ import annotations

import pytest

from prunus.errors import PrunusError
from prunus.util.options import names, numbers


def test_names_and_numbers() -> None:
    assert names(" gsd, l1,,gsd:ridge=0.5 ") == ("gsd", "l1", "gsd:ridge=0.5")
    assert numbers("0.1,0.25 3") == (0.1, 0.25, 3.0)
    with pytest.raises(PrunusError, match=r"numbers separated by commas, such as 0\.1,0\.2; got '0\.1;0\.2'"):
        numbers("0.1;0.2")
