"""Progress: bars in a terminal after two seconds, lines off a terminal, silence where it is asked for."""

from __future__ import annotations

import io
import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr

import pytest

from prunus.util import progress
from prunus.util.progress import phases, shown, steps


class Stream(io.StringIO):
    """Text that may come from a terminal."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal

    def rows(self) -> list[str]:
        """What was drawn, row by row, without colours and movements of the cursor."""
        return [row.rstrip() for row in re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.getvalue()))]


class Clock:
    """A clock that the test sets."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(progress, "clock", found)
    return found


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """80 columns, and a terminal that can draw."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")


@contextmanager
def stream(*, terminal: bool) -> Iterator[Stream]:
    """A stderr for a while."""
    with redirect_stderr(Stream(terminal)) as found:
        yield found


def test_a_bar_appears_after_two_seconds(clock: Clock) -> None:
    with stream(terminal=True) as stderr, shown(None, steps("score")) as report:
        report(1, 40)
        clock.now += 1.9
        report(2, 40)
        assert stderr.getvalue() == ""
        clock.now += 0.2
        report(10, 40)
        assert any(row.startswith("score") and " 10/40 " in row for row in stderr.rows())


def test_a_bar_appears_during_a_long_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "BAR_AFTER", 0.05)
    with stream(terminal=True) as stderr:
        with shown(None, steps("export")) as report:
            report(0, 1)
            for _ in range(100):
                time.sleep(0.05)
                if "export" in stderr.getvalue():
                    break
        assert any(row.startswith("export") and " 0/1 " in row for row in stderr.rows())
        with shown(None, steps("short")) as report:
            report(0, 1)
        time.sleep(0.1)
        assert "short" not in stderr.getvalue()


def test_the_time_left_is_not_cut_at_80_columns(clock: Clock) -> None:
    with stream(terminal=True) as stderr:
        with shown(None, phases) as show:
            show("first", 4, 4, "")
            clock.now += 3
            show("round 12: learning rate", 123_456, 1_234_567, "epoch 100/200, loss 0.123, 98.7%, 12,345 images/s")
        row = next(row for row in stderr.rows() if row.startswith("round"))
        assert re.match(r"round 12: learning rate .* 123456/1234567 \d:\d\d:\d\d left -:--:-- ", row), row
        assert len(row) <= 80
        assert not [row for row in stderr.rows() if row.startswith("first")]  # it is finished


def test_off_a_terminal_there_is_a_line_every_half_minute(clock: Clock) -> None:
    with stream(terminal=False) as stderr:
        with shown(None, steps("score")) as report:
            for second in range(76):  # a step each second
                clock.now = 1000.0 + second
                report(second, 100)
        # After 30 of 100 steps in 30 s, 70 s are left; after 60 steps, 40 s.
        assert stderr.getvalue().splitlines() == [
            "score: 30 of 100, 30.0 s so far, about 1 min 10 s left",
            "score: 60 of 100, 1 min 0 s so far, about 40.0 s left",
        ]


def test_the_time_left_counts_from_where_a_run_was_resumed(clock: Clock) -> None:
    with stream(terminal=False) as stderr, shown(None, phases) as show:
        clock.now += 10
        show("first", 1, 1, "")
        clock.now += 50
        show("second", 1, 2, "")  # its first report: it began where the one before ended
        show("train", 500, 1000, "")
        clock.now += 3600
        show("train", 600, 1000, "loss 0.5")  # 100 steps in an hour; 400 are left
    assert stderr.getvalue().splitlines() == [
        "second: 1 of 2, 50.0 s so far",
        "train: 600 of 1000, 1 h 0 min so far, about 4 h 0 min left, loss 0.5",
    ]


def test_lines_go_to_the_log_if_it_is_on(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    with stream(terminal=False) as stderr:
        with caplog.at_level(logging.INFO), shown(None, steps("score")) as report:
            report(0, None)
            clock.now += 31
            report(7, None)
        assert caplog.messages == ["score: 7, 31.0 s so far"] and stderr.getvalue() == ""


def test_false_is_silent_and_so_are_work_inside_and_other_processes(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stream(terminal=False) as stderr:
        with shown(False, steps("outer")), shown(None, steps("inner")) as report:
            clock.now += 31
            report(1, 2)
        heard: list[tuple[int, int | None]] = []
        with shown(lambda done, total: heard.append((done, total)), steps("outer")) as report:
            report(1, 2)
            with shown(None, steps("inner")) as inner:
                clock.now += 31
                inner(3, 4)
        monkeypatch.setenv("RANK", "1")
        with shown(None, steps("score")) as report:
            clock.now += 31
            report(1, 2)
        assert heard == [(1, 2)] and stderr.getvalue() == ""


def test_work_inside_joins_the_display(clock: Clock) -> None:
    with stream(terminal=False) as stderr:
        with shown(None, phases) as show:
            show("outer", 0, 2, "")
            with shown(None, steps("inner")) as report:
                clock.now += 31
                report(1, 2)
            clock.now += 31
            show("outer", 1, 2, "")
        assert [line.split(":")[0] for line in stderr.getvalue().splitlines()] == ["inner", "outer"]


def test_bars_go_away_after_an_error(clock: Clock) -> None:
    with stream(terminal=True) as stderr:
        with pytest.raises(ValueError, match="broken"), shown(None, steps("score")) as report:
            clock.now += 3
            report(1, 2)
            raise ValueError("broken")
        assert stderr.getvalue().endswith("\x1b[?25h") or "\x1b[?25h" in stderr.getvalue()  # the cursor is back
        assert progress._active.get() is None
