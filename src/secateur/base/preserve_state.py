"""Context managers that restore state: train / eval mode of every module, random generators, settings of compilers."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[nn.Module]:
    """Put the model into eval mode, and restore the mode of each module afterwards, also after an error."""
    modes = [(module, module.training) for module in model.modules()]
    if any(training for _, training in modes):  # setting what is set already takes as long as a small network
        model.eval()
    try:
        yield model
    finally:
        for module, training in modes:  # one by one: a training model may contain a frozen batch norm in eval mode
            if module.training != training:
                module.training = training


@contextmanager
def generators_kept(seed: int | None = None) -> Iterator[None]:
    """Restore the global generators of torch (all devices), numpy and random afterwards; seed them first if asked."""
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002  users' transforms may use it
    devices = list(range(torch.cuda.device_count()))
    with torch.random.fork_rng(devices):
        try:
            if seed is not None:
                reseed(seed)
            yield
        finally:
            random.setstate(python)
            np.random.set_state(legacy)  # noqa: NPY002


@contextmanager
def nothing_compiled() -> Iterator[None]:
    """Code under torch.compile runs as it is written: so it can be recorded, and other widths take no time."""
    if "torch._dynamo" not in sys.modules:  # importing it takes a second
        yield
        return
    with torch._dynamo.config.patch(error_on_nested_fx_trace=False), torch.compiler.set_stance("force_eager"):
        yield


def reseed(*numbers: int) -> None:
    """Seed the global generators from one or several numbers; (seed, epoch) and (seed, epoch + 1) are independent."""
    words = np.random.SeedSequence(numbers).generate_state(2, np.uint32)
    torch.manual_seed(int(words[0]))
    random.seed(int(words[1]))
    np.random.seed(words[1])  # noqa: NPY002
