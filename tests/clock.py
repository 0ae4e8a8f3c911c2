"""A clock for tests: time passes only when a test says so."""

from __future__ import annotations


class Clock:
    """Stands for the module `time`. Each reading takes `tick` seconds, for code that divides by durations."""

    def __init__(self, tick: float = 0.0) -> None:
        self.now, self.tick = 0.0, tick

    def perf_counter(self) -> float:
        self.now += self.tick
        return self.now

    def process_time(self) -> float:
        return self.now / 4

    def sleep(self, seconds: float) -> None:
        self.now += seconds
