"""Short tables for `repr`."""

from prunus.util.text import short_table


def test_columns_are_aligned_and_long_tables_are_cut() -> None:
    rows = [("a", "1"), ("long name", "22"), ("b", "3")]
    assert short_table("Title", ("unit", "n"), rows, most=2).splitlines() == [
        "Title",
        "  unit       n",
        "  a          1",
        "  long name  22",
        "  ... and 1 more",
    ]
