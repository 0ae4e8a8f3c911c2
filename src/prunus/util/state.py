"""Restore what running a network may change: attributes, containers, buffers, hooks and generators of its modules."""

from __future__ import annotations

import functools
import gc
import operator
import random
import sys
import threading
import types
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves

PLAIN = frozenset(
    (int, float, bool, str, bytes, complex, type(None), type, torch.dtype, torch.device, torch.Size, slice, range)
) | {types.FunctionType, types.BuiltinFunctionType, types.ModuleType, torch.jit.ScriptFunction}
PLAIN |= {type(threading.Lock()), type(threading.RLock())}  # deepcopy refuses these
CONTAINERS = frozenset((dict, OrderedDict, set))
_USUAL = frozenset((Tensor, dict, OrderedDict))  # asked for first: most values in modules
_DEPTH = 3  # how deep objects other than modules are followed
_LAZY = (nn.parameter.UninitializedParameter, nn.parameter.UninitializedBuffer)


class ModuleState:
    """The state of all modules of a network. `restore` can be called several times. See `module_state_kept`."""

    def __init__(self, *models: nn.Module, weights: bool = False) -> None:
        self._weights = weights
        self._seen: set[int] = set()
        self._empty: list[dict[Any, Any] | set[Any]] = []  # most hooks
        self._saved: list[tuple[Any, Any]] = []  # a container, tensor, array or generator, and what it had
        self._memory: list[tuple[Tensor, Tensor]] = []  # a parameter, and its memory, which code may exchange
        for model in models:
            self._save_module(model)

    def _save_module(self, module: nn.Module) -> None:
        if id(module) in self._seen:
            return
        self._seen.add(id(module))
        if isinstance(module, torch.jit.ScriptModule):
            for buffer in module.buffers():
                self._save(buffer, 0)
            return
        values = module.__dict__
        self._saved.append((values, dict(values)))
        parameters, children = values["_parameters"], values["_modules"]
        empty = self._empty.append
        for value in [value for value in values.values() if type(value) not in PLAIN]:
            kind = type(value)
            if kind in CONTAINERS and not value:
                empty(value)
            elif value is children and kind is dict:
                self._saved.append((value, dict(value)))
                for child in value.values():
                    if child is not None:
                        self._save_module(child)
            elif value is not parameters and (kind is not tuple or not PLAIN.issuperset(map(type, value))):
                self._save(value, 0)  # not a kernel size
        if parameters:
            self._saved.append((parameters, dict(parameters)))
            if self._weights or has_own_code(module):
                for parameter in parameters.values():
                    self._save(parameter, 0)

    def _save(self, value: Any, depth: int) -> None:
        """Save a value and what it refers to; objects other than modules are followed for `_DEPTH` steps."""
        kind = type(value)
        if kind in PLAIN:
            return
        if kind not in _USUAL and isinstance(value, nn.Module):
            self._save_module(value)
            return
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        inside: Iterable[Any] = ()
        if kind is Tensor:
            self._saved.append((value, value.detach().clone()))
        elif isinstance(value, Tensor):
            if kind not in _LAZY:
                self._saved.append((value, value.detach().clone()))
                if isinstance(value, nn.Parameter):
                    self._memory.append((value, value.data))
        elif isinstance(value, dict):
            self._saved.append((value, dict(value)))
            inside = value.values()
        elif isinstance(value, list | deque | tuple):
            if not isinstance(value, tuple):
                self._saved.append((value, list(value)))
            inside = () if PLAIN.issuperset(map(type, value)) else value
        elif isinstance(value, set):
            self._saved.append((value, set(value)))
        elif isinstance(value, np.ndarray):
            self._saved.append((value, value.copy()))
        elif isinstance(value, torch.Generator):
            self._saved.append((value, value.get_state()))
        elif isinstance(value, types.MethodType):
            inside, depth = (value.__self__,), depth + 1
        elif depth < _DEPTH and type(getattr(value, "__dict__", None)) is dict and not isinstance(value, type):
            self._saved.append((value.__dict__, dict(value.__dict__)))
            inside, depth = value.__dict__.values(), depth + 1
        for part in inside:
            self._save(part, depth)

    def changed(self) -> bool:
        """Whether anything is not as it was."""
        return any(self._empty) or any(_differs(live, before) for live, before in self._saved)

    def written(self) -> list[Any]:
        """The containers, tensors, arrays and generators that are not as they were."""
        return [live for live, before in self._saved if _differs(live, before)] + [live for live in self._empty if live]

    @torch.no_grad()
    def restore(self) -> None:
        """Make everything as it was. What has not changed is not written to."""
        for empty in self._empty:
            if empty:
                empty.clear()
        for parameter, memory in self._memory:
            if parameter.data_ptr() != memory.data_ptr():
                parameter.data = memory
        for live, before in self._saved:
            if not _differs(live, before):
                continue
            if isinstance(live, dict | set):
                live.clear()
                live.update(before)
            elif isinstance(live, list | deque):
                live.clear()
                live.extend(before)
            elif isinstance(live, Tensor):
                if live.shape != before.shape or live.dtype != before.dtype:
                    live.data = before.clone()
                else:
                    live.copy_(before)
            elif isinstance(live, np.ndarray):
                live[...] = before
            else:
                live.set_state(before)


def _differs(live: Any, before: Any) -> bool:
    """Whether a container, tensor, array or generator is not as it was saved."""
    if isinstance(live, dict):  # the same keys in the same order, and the same objects under them
        return list(live) != list(before) or any(map(operator.is_not, live.values(), before.values()))
    if isinstance(live, Tensor):
        return live.shape != before.shape or live.dtype != before.dtype or not torch.equal(live, before)
    if isinstance(live, list | deque):
        return len(live) != len(before) or any(map(operator.is_not, live, before))
    if isinstance(live, set):
        return bool(live != before)
    if isinstance(live, np.ndarray):
        return live.shape != before.shape or not np.array_equal(live, before)
    return not torch.equal(live.get_state(), before)


def has_own_code(module: nn.Module) -> bool:
    """Whether forward may do anything, such as write into parameters: it is not PyTorch's own, or the user's hooks run
    with it."""
    foreign = False
    if module._forward_hooks or module._forward_pre_hooks:
        hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
        foreign = any(not (getattr(hook, "__module__", None) or "").startswith("prunus.graph.") for hook in hooks)
    return foreign or "forward" in module.__dict__ or not type(module).__module__.startswith("torch.nn.modules")


@contextmanager
def module_state_kept(*models: nn.Module, weights: bool = False) -> Iterator[None]:
    """Restore the state of all modules of these networks afterwards, also after an error.

    With `weights` also the weights of PyTorch's layers, whose code does not write to them.
    """
    state = ModuleState(*models, weights=weights)
    try:
        yield
    finally:
        state.restore()


_LOCK = threading.RLock()


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Inside the block torch behaves as usual, and afterwards nothing that several networks share has changed.

    One thread at a time; not in inference mode, nor with new tensors on the meta device; generators, and what the
    network's classes and Python modules hold, are restored.
    """
    meta = torch.get_default_device().type == "meta"
    with _LOCK, torch.inference_mode(False), torch.device("cpu") if meta else nullcontext(), generators_kept():
        state = SharedState(model)
        try:
            yield
        finally:
            state.restore()


class SharedState:
    """What the classes of a network's modules, and the Python modules that define them, hold: caches, for example."""

    def __init__(self, model: nn.Module) -> None:
        kinds = {kind for module in _modules(model) for kind in type(module).__mro__}
        kinds = {kind for kind in kinds if not kind.__module__.startswith(("torch.", "builtins"))}
        modules = {sys.modules[kind.__module__] for kind in kinds if kind.__module__ in sys.modules}
        self._owners = [(owner, dict(vars(owner))) for owner in (*kinds, *modules)]
        self._inside, self._caches = ModuleState(), []
        for _, values in self._owners:
            for value in values.values():
                if isinstance(value, dict | list | set | deque | Tensor) and not isinstance(value, nn.Module):
                    self._inside._save(value, _DEPTH)
                elif isinstance(value, functools._lru_cache_wrapper):
                    self._caches.append((value, value.cache_info().currsize))

    def restore(self) -> None:
        """Make everything as it was that has got tensors since; functions with a cache forget what they did not know.

        Other things may have been changed by other threads.
        """
        self._inside._saved = [
            (live, before)
            for live, before in self._inside._saved
            if isinstance(live, Tensor) or (_differs(live, before) and _holds_tensors(live))
        ]
        self._inside.restore()
        for function, size in self._caches:
            if function.cache_info().currsize != size:
                function.cache_clear()
        for owner, before in self._owners:
            for name, value in [*vars(owner).items()]:
                if value is not before.get(name) and _holds_tensors(value):
                    if name in before:
                        setattr(owner, name, before[name])
                    else:
                        delattr(owner, name)


def _holds_tensors(value: Any) -> bool:
    """Whether a value is a tensor, or what stands in for one while a network is recorded, or contains one."""
    return any(isinstance(leaf, Tensor | fx.Proxy) for leaf in tree_leaves(value))


def _modules(model: nn.Module) -> list[nn.Module]:
    """As `model.modules()`, in a fraction of the time for deep models."""
    modules: dict[nn.Module, None] = {}
    waiting = [model]
    while waiting:
        module = waiting.pop()
        if module not in modules:
            modules[module] = None
            if module._modules:
                waiting += [child for _, child in reversed(module._modules.items()) if child is not None]
    return list(modules)


def overrides_train(model: nn.Module) -> bool:
    """Whether a module overrides `train` or `eval`, which may then change weights."""
    kinds = {type(module) for module in _modules(model)}
    return any(kind.train is not nn.Module.train or kind.eval is not nn.Module.eval for kind in kinds)


@contextmanager
def collected_later() -> Iterator[None]:
    """Inside the block, Python does not search for reference cycles: a trace makes many objects, and few of these."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[nn.Module]:
    """Put the model into eval mode, and restore the mode of each module afterwards, also after an error."""
    modes = [(module, module.training) for module in _modules(model)]
    if any(training for _, training in modes):  # setting what is set already takes as long as a small network
        model.eval()
    try:
        yield model
    finally:
        for module, training in modes:  # one by one: a training model may contain a frozen batch norm in eval mode
            if module.training != training:
                if type(module).train is nn.Module.train:
                    module.training = training
                else:  # it may have changed weights in eval mode, and takes that back
                    module.train(training)


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


class _Eager:
    """torch.compile switched off until the last block ends: blocks may end in any order and run in several threads."""

    def __init__(self) -> None:
        self._lock, self._blocks = threading.Lock(), 0  # of the process
        self._stance: Any = None
        self._here = threading.local()  # PyTorch keeps settings of each thread

    def __enter__(self) -> None:
        with self._lock:
            if not self._blocks:
                self._stance = torch.compiler.set_stance("force_eager")
            self._blocks += 1
        self._here.blocks = getattr(self._here, "blocks", 0) + 1
        if self._here.blocks == 1:
            self._here.patch = torch._dynamo.config.patch(error_on_nested_fx_trace=False)
            self._here.patch.__enter__()

    def __exit__(self, *error: object) -> None:
        self._here.blocks -= 1
        if not self._here.blocks:
            self._here.patch.__exit__(None, None, None)
        with self._lock:
            self._blocks -= 1
            if not self._blocks:
                self._stance.__exit__(None, None, None)


_EAGER = _Eager()


@contextmanager
def nothing_compiled() -> Iterator[None]:
    """Code under torch.compile runs as it is written: so it can be recorded, and other widths take no time."""
    if "torch._dynamo" not in sys.modules:  # importing it takes a second
        yield
        return
    with _EAGER:
        yield


def reseed(*numbers: int) -> None:
    """Seed the global generators from one or several numbers; (seed, epoch) and (seed, epoch + 1) are independent."""
    seeds = np.random.SeedSequence(numbers).generate_state(2, np.uint32)
    if torch.cuda.is_available() or torch.backends.mps.is_available():
        torch.manual_seed(int(seeds[0]))
    else:  # without devices, torch formats a traceback for each of them that might come
        torch.default_generator.manual_seed(int(seeds[0]))
    random.seed(int(seeds[1]))
    np.random.seed(seeds[1])  # noqa: NPY002
