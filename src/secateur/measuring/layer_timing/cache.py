"""Timings in the user's cache folder: one JSON file for each machine, engine, number of threads and batch size."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from secateur.base.atomic_files import read_object, write_atomically
from secateur.errors import FileError
from secateur.measuring.layer_timing.machine import MeasuredWith

FORMAT = "secateur-latency-cache"
VERSION = 2  # timings of other versions are not read: their files have other names

Timings = dict[str, dict[str, float]]  # kind -> widths as text ("16->32") -> seconds


def cache_folder() -> Path:
    """Where timings are kept: $XDG_CACHE_HOME/secateur/latency, or ~/.cache/secateur/latency."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "secateur" / "latency"


def cache_file(setting: MeasuredWith) -> Path:
    """The file for timings of this machine, engine, number of threads and batch size."""
    text = json.dumps({**asdict(setting), "version": VERSION}, sort_keys=True)
    return cache_folder() / f"{setting.engine}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def read_cache(setting: MeasuredWith) -> Timings:
    """Known timings; none if there is no file. FileError if the file is broken."""
    path = cache_file(setting)
    if not path.exists():
        return {}
    hint = "; delete it, and layers are timed again"
    try:
        data = read_object(path)
    except FileError as error:
        raise FileError(f"{error}{hint}") from error
    if data.get("format") != FORMAT or data.get("version") != VERSION or data.get("setting") != asdict(setting):
        raise FileError(f"{path} is not a file of timings that this secateur wrote{hint}")
    timings = data.get("timings")
    if not isinstance(timings, dict) or not all(map(_is_times, timings.values())):
        raise FileError(f"{path} holds times that are no numbers{hint}")
    return timings


def write_cache(setting: MeasuredWith, timings: Mapping[str, Mapping[str, float]]) -> None:
    """Keep timings, whole or not at all."""
    data = {"format": FORMAT, "version": VERSION, "setting": asdict(setting), "timings": timings}
    write_atomically(cache_file(setting), json.dumps(data, indent=0).encode())


def _is_times(times: Any) -> bool:
    return isinstance(times, dict) and all(type(s) in (int, float) and math.isfinite(s) for s in times.values())
