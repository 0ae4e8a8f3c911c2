"""Progress: bars in a terminal after two seconds, lines off a terminal, silence where it is asked for."""

from __future__ import annotations

import io
import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr

import pytest

from prunus.util import progress
from prunus.util.progress import phases, shown, steps, warn_once


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


def test_bars_are_there_before_the_first_report_and_not_after_short_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "BAR_AFTER", 0.05)
    with stream(terminal=True) as stderr:
        with shown(None, steps("score")) as report:
            wait_for(lambda: "preparing" in stderr.getvalue())
            report(1, 4)
            wait_for(lambda: any(row.startswith("score") and " 1/4 " in row for row in stderr.rows()))
        drawn = [row for row in stderr.rows() if row]
        assert drawn[-1].startswith("score") and not drawn[-2].startswith("preparing")  # which made room
        with shown(None, steps("short")) as report:
            report(0, 1)
        time.sleep(0.1)
        assert "short" not in stderr.getvalue()


def test_off_a_terminal_there_are_lines_during_a_long_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "FIRST_LINE", 0.05)
    monkeypatch.setattr(progress, "LINE_EVERY", 0.05)
    monkeypatch.setattr(progress, "LOOK_EVERY", 0.01)
    with stream(terminal=False) as stderr:
        with shown(None, steps("score")) as report:
            wait_for(lambda: stderr.getvalue().startswith("preparing, "))
            report(0, 4)
            wait_for(lambda: "\nscore: 0 of 4, " in stderr.getvalue())
            report(4, 4)
            wait_for(lambda: "\nscore: done, the next step takes " in stderr.getvalue())
        said = stderr.getvalue()
        time.sleep(0.2)
        assert stderr.getvalue() == said  # nothing after the end


def wait_for(seen: Callable[[], bool]) -> None:
    """Wait up to 10 s."""
    for _ in range(1000):
        if seen():
            return
        time.sleep(0.01)
    raise AssertionError("it was not shown")


def test_a_warning_is_said_once_in_work_that_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("prunus.test")
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            warn_once(log, "few", "alone")
        with shown(False, steps("outer")), shown(None, steps("inner")):
            warn_once(log, "few", "first")
            warn_once(log, "few", "again")
            warn_once(log, "other", "another")
        with shown(False, steps("next")):
            warn_once(log, "few", "anew")
    warned = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert warned == ["alone", "alone", "first", "another", "anew"]
    assert "again" in caplog.messages


def test_off_a_terminal_there_is_a_line_soon_and_then_every_half_minute(clock: Clock) -> None:
    with stream(terminal=False) as stderr:
        with shown(None, steps("score")) as report:
            for second in range(76):  # a step each second
                clock.now = 1000.0 + second
                report(second, 100)
        # A step takes a second: after 5 of 100, 95 s are left; after 35, 65 s; after 65, 35 s.
        assert stderr.getvalue().splitlines() == [
            "score: 5 of 100, 5.0 s so far, about 1 min 35 s left",
            "score: 35 of 100, 35.0 s so far, about 1 min 5 s left",
            "score: 65 of 100, 1 min 5 s so far, about 35.0 s left",
        ]


def test_the_time_left_counts_from_where_a_run_was_resumed(clock: Clock) -> None:
    with stream(terminal=False) as stderr, shown(None, phases) as show:
        clock.now += 4
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


def test_work_inside_joins_the_display_and_lines_go_to_the_log_if_it_is_on(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    with stream(terminal=False) as stderr:
        with caplog.at_level(logging.INFO), shown(None, phases) as show:
            show("outer", 0, 2, "")
            with shown(None, steps("inner")) as report:
                report(0, None)
                clock.now += 31
                report(7, None)
            clock.now += 31
            show("outer", 1, 2, "")
        assert caplog.messages[0] == "inner: 7, 31.0 s so far" and caplog.messages[1].startswith("outer: 1 of 2, ")
        assert stderr.getvalue() == ""


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


def test_bars_go_away_after_an_error(clock: Clock) -> None:
    with stream(terminal=True) as stderr:
        with pytest.raises(ValueError, match="broken"), shown(None, steps("score")) as report:
            clock.now += 3
            report(1, 2)
            raise ValueError("broken")
        assert "\x1b[?25h" in stderr.getvalue()  # the cursor is back
        assert progress._active.get() is None
