"""Lists in the text of a command line option."""

from __future__ import annotations

import pytest

from secateur.base.parsing import names, numbers
from secateur.errors import SecateurError


def test_names_and_numbers() -> None:
    assert names(" gsd, l1,,gsd:ridge=0.5 ") == ("gsd", "l1", "gsd:ridge=0.5")
    assert numbers("0.1,0.25 3") == (0.1, 0.25, 3.0)
    with pytest.raises(SecateurError, match=r"numbers separated by commas, such as 0\.1,0\.2; got '0\.1;0\.2'"):
        numbers("0.1;0.2")
