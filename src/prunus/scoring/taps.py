"""The tensors that a pass looks at: those that enter the readers, or those in front of the activations before them."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from prunus.errors import ScoreError
from prunus.graph.channel_graph import ChannelGraph
from prunus.graph.traced import as_call
from prunus.graph.units import Indices, Reader
from prunus.scoring.metrics import Where
from prunus.util.state import evaluating, generators_kept, nothing_compiled

logger = logging.getLogger(__name__)

See = Callable[[str, Tensor], None]  # the tap's name and its tensor, channels at axis 1


@dataclass(frozen=True, eq=False)
class Slot:
    """Some of a unit's channels in one tensor: their positions [n, m] on its channel axis."""

    unit: str
    channels: Indices  # [n]
    inputs: Indices  # [n, m]
    readers: tuple[Reader, ...]  # the unit's layers that read them there

    @property
    def key(self) -> bytes:
        """What must be reduced: empty for each position of the axis separately, else the slot's pooled positions."""
        return b"" if self.inputs.shape[1] == 1 else self.inputs.tobytes()


Taps = dict[str, list[Slot]]  # by the layer that the tensor enters, the first of several that share it
Owners = dict[str, str]  # layer -> the first layer that reads the same tensor, if that is another one


@dataclass(frozen=True)
class TapLocations:
    """The taps of a pass: by layer for tensors that enter it, by call for tensors in front of an activation."""

    readers: Taps
    activations: Mapping[int, list[Slot]] = field(default_factory=dict)
    last_axis: frozenset[int] = frozenset()  # activation calls whose channels are at the last axis
    notes: tuple[str, ...] = ()

    @property
    def taps(self) -> Taps:
        return {**self.readers, **{activation_name(call): slots for call, slots in self.activations.items()}}


def activation_name(call: int) -> str:
    return f"activation {call}"


def merged(taps: Taps, owners: Owners) -> Taps:
    """The taps, with those that share a tensor merged into one, and with equal slots of a unit merged, too."""
    merged_slots: dict[str, dict[tuple[str, bytes, bytes], Slot]] = {}
    for name, slots in taps.items():
        mine = merged_slots.setdefault(owners.get(name, name), {})
        for slot in slots:
            key = slot.unit, slot.channels.tobytes(), repr(slot.inputs.shape).encode() + slot.inputs.tobytes()
            earlier = mine[key].readers if key in mine else ()
            mine[key] = Slot(slot.unit, slot.channels, slot.inputs, (*earlier, *slot.readers))
    return {name: list(parts.values()) for name, parts in merged_slots.items()}


@contextmanager
def hooked(model: nn.Module, layers: Iterable[str], hook: Callable[..., Any], *, after: bool = False) -> Iterator[None]:
    """Inside the block `hook(name, layer, args)` runs before every call of these layers, or after it, with the output.

    Hooks run after existing ones, and compiled code, which does not see new hooks, is left aside. They are removed
    afterwards, on errors too.
    """
    handles = []
    try:
        for name in layers:
            layer = model.get_submodule(name)
            register = layer.register_forward_hook if after else layer.register_forward_pre_hook
            handles.append(register(partial(hook, name)))
        with nothing_compiled():
            yield
    finally:
        for handle in handles:
            handle.remove()


def reading_taps(graph: ChannelGraph) -> Taps:
    """One tap for each layer that reads channels of some unit, in the order of the units."""
    taps: Taps = {}
    for name, unit in graph.units.items():
        for reader in unit.readers:
            taps.setdefault(reader.module, []).append(Slot(name, reader.channels, reader.inputs, (reader,)))
    return taps


def channels_first(x: Tensor, layer: nn.Module) -> Tensor:
    """The tensor that enters `layer` with its channel axis at 1; linear layers have it at the end."""
    return x.movedim(-1, 1) if isinstance(layer, nn.Linear) and x.ndim > 2 else x


def gather(x: Tensor, slot: Slot) -> Tensor:
    """The slot's channels of x [N, F, ...], all positions of a channel together: [N, n, m x P].

    This is a view if they are in order (an ordinary flatten).
    """
    n, m = slot.inputs.shape
    flat = slot.inputs.reshape(-1)
    if n * m == x.shape[1] and np.array_equal(flat, np.arange(n * m)):
        return x.reshape(len(x), n, -1)
    return x[:, torch.from_numpy(flat).to(x.device)].reshape(len(x), n, -1)


@contextmanager
def watched(graph: ChannelGraph, places: TapLocations, see: See) -> Iterator[Owners]:
    """Inside the block every forward pass of `graph.model` shows each tap's tensor to `see`, a shared one only once.

    A layer that is called several times shows the tensor of each call, and shares it with no other layer. All see the
    channels that a channel selection has left.
    """
    owners: Owners = {}
    calls, taps = graph.analysis.traced.calls, places.readers
    # (id of the tensor, linear layer?) -> the tensor, its version and the layer that showed it
    seen: dict[tuple[int, bool], tuple[weakref.ref[Tensor], int, str]] = {}

    def look(name: str, layer: nn.Module, args: tuple[Any, ...]) -> None:
        if not args or not isinstance(args[0], Tensor):
            raise ScoreError(f"{name} must be called with a tensor as its first argument; it cannot be scored")
        x = args[0]
        key = (id(x), isinstance(layer, nn.Linear))  # linear layers have their channel axis elsewhere
        tensor, version, owner = seen.get(key, (lambda: None, 0, ""))
        once = calls.get(name, 1) == calls.get(owner, 1) == 1
        known = once and tensor() is x and version == x._version and owner != name
        if known and {slot.key for slot in taps[name]} <= {slot.key for slot in taps[owner]}:
            owners[name] = owner
            return
        seen[key] = (weakref.ref(x), x._version, name)
        see(name, channels_first(x, layer))

    def show(call: int, x: Tensor) -> None:
        see(activation_name(call), x.movedim(-1, 1) if call in places.last_axis and x.ndim > 2 else x)

    with ExitStack() as stack:
        stack.enter_context(hooked(graph.model, taps, look))
        if places.activations:
            before = _Activations({call: partial(show, call) for call in places.activations})
            stack.enter_context(hooked(graph.model, [""], before.restart))
            stack.enter_context(before)
        yield owners


def locate_taps(graph: ChannelGraph, where: Where) -> TapLocations:
    """The taps for `where`; "before_activation" runs the example once to find the activation that each layer reads."""
    taps = reading_taps(graph)
    if where == "reader":
        return TapLocations(taps)
    if where != "before_activation":
        raise ScoreError(f'tap must be "reader" or "before_activation", got {where!r}')
    origins = _origins(graph, taps)
    readers: Taps = {}
    activations: dict[int, list[Slot]] = {}
    last_axis: set[int] = set()
    notes: list[str] = []
    for name, slots in taps.items():
        at_end = isinstance(graph.model.get_submodule(name), nn.Linear)
        rest = []
        for slot in slots:
            moved = _moved(slot, origins[name], at_end)
            rest += [] if moved is not None else [slot]
            for call, part in (moved or {}).items():
                activations.setdefault(call, []).append(part)
                if at_end and origins[name].direct == call:  # type: ignore[union-attr]
                    last_axis.add(call)
        if rest:
            readers[name] = rest
            units = " and ".join(dict.fromkeys(slot.unit for slot in rest))
            several = graph.analysis.traced.calls.get(name, 1) > 1
            why = f"{name} is called several times" if several else f"there is no activation right before {name}"
            notes.append(f"{units}: {why}, so its input is scored")
    for note in notes:
        logger.info("%s", note)
    return TapLocations(readers, dict(sorted(activations.items())), frozenset(last_axis), tuple(notes))


# Find the tensor in front of an activation, however the network calls it: modules, functions, methods, in place.

_ACTIVATIONS = """
relu leaky_relu elu celu selu hardtanh silu gelu hardswish hardsigmoid sigmoid tanh softplus mish clamp_min
rrelu_with_noise prelu _prelu_kernel log_sigmoid_forward
"""
_PASSING = """
max_pool1d max_pool2d max_pool3d max_pool2d_with_indices max_pool3d_with_indices avg_pool1d avg_pool2d avg_pool3d
_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d adaptive_max_pool2d mean amax view _unsafe_view reshape
squeeze unsqueeze clone detach alias _to_copy contiguous native_dropout dropout
"""
ACTIVATIONS = frozenset(f"aten::{name}{in_place}" for name in _ACTIVATIONS.split() for in_place in ("", "_"))
PASSING = frozenset(f"aten::{name}" for name in _PASSING.split())


@dataclass(frozen=True, eq=False)
class Origin:
    """For each position on axis 1 of a tensor: the activation call it comes from, and the channel there; -1: none.

    `direct` is the call whose output the tensor itself is; then its channels may also be at the last axis.
    """

    call: Indices
    channel: Indices
    direct: int | None = None


class _Activations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the activation calls of a forward pass.

    Args:
        shown: Call -> what to do with its input, before an in-place call overwrites it.
        follow: Keep all tensors that come from activations, to tell their origins: for an example only.
    """

    def __init__(self, shown: Mapping[int, Callable[[Tensor], None]] | None = None, follow: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._shown, self._follow = shown or {}, follow
        self._calls = 0
        self._origins: dict[int, tuple[Tensor, Origin]] = {}

    def restart(self, *_: Any) -> None:
        self._calls = 0

    def origin(self, x: Any) -> Origin | None:
        """Where the channels of x come from, if known."""
        tensor, origin = self._origins.get(id(x), (None, None))
        return origin if tensor is x else None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name, call = func._schema.name, -1
        if name in ACTIVATIONS and isinstance(args[0], Tensor) and args[0].ndim > 1:
            call = self._calls
            self._calls += 1
            if call in self._shown:
                self._shown[call](args[0])
        out = func(*args, **(kwargs or {}))
        first = out[0] if isinstance(out, tuple | list) and out else out
        if self._follow and isinstance(first, Tensor) and first.ndim > 1:
            if call < 0:
                origin = self._followed(name, args, first)
            else:
                origin = Origin(np.full(first.shape[1], call), np.arange(first.shape[1]), call)
            self._origins.pop(id(first), None)
            if origin is not None:
                self._origins[id(first)] = (first, origin)
        return out

    def _followed(self, name: str, args: tuple[Any, ...], out: Tensor) -> Origin | None:
        if name == "aten::cat":
            dim = args[1] if len(args) > 1 else 0
            if dim not in (1, 1 - args[0][0].ndim) or not any(map(self.origin, args[0])):
                return None
            unknown = [np.full(x.shape[1], -1) for x in args[0]]
            parts = [self.origin(x) or Origin(u, u) for x, u in zip(args[0], unknown, strict=True)]
            return Origin(np.concatenate([p.call for p in parts]), np.concatenate([p.channel for p in parts]))
        before = self.origin(args[0]) if args else None
        if before is None:
            return None
        if name == "aten::index_select" and args[1] == 1:
            index = args[2].cpu().numpy()
            return Origin(before.call[index], before.channel[index])
        if name not in PASSING:
            return None
        # After pooling or a change of shape, channels stay at axis 1, or are flattened together with their pixels.
        x = args[0]
        if out.shape[:2] == x.shape[:2]:
            return before if out.shape == x.shape else Origin(before.call, before.channel)
        pixels = x.shape[2:].numel()
        if out.ndim == 2 and out.shape == (x.shape[0], x.shape[1] * pixels):
            return Origin(before.call.repeat(pixels), before.channel.repeat(pixels))
        return None


def _origins(graph: ChannelGraph, taps: Taps) -> dict[str, Origin | None]:
    """For each tapped layer that is called once: the activations that its input comes from."""
    tracer, model = _Activations(follow=True), graph.model
    origins: dict[str, Origin | None] = dict.fromkeys(taps)

    def note(name: str, _: nn.Module, given: tuple[Any, ...]) -> None:
        origins[name] = tracer.origin(given[0]) if given else None

    args, kwargs = as_call(graph.example)
    once = [name for name in taps if graph.analysis.traced.calls.get(name, 1) == 1]
    with evaluating(model), generators_kept(), torch.no_grad(), hooked(model, once, note), tracer:
        model(*args, **kwargs)
    return origins


def _moved(slot: Slot, origin: Origin | None, at_end: bool) -> dict[int, Slot] | None:
    """The slot in front of the activations, one part for each call; None if some channel comes from no activation."""
    if origin is None:
        return None
    if at_end and origin.direct is not None:  # the positions of the last axis are those of the activation
        return {origin.direct: slot}
    if slot.inputs.max() >= len(origin.call):
        return None
    call, channel = origin.call[slot.inputs], origin.channel[slot.inputs]  # [n, m] each
    if (call < 0).any() or (call != call[:, :1]).any() or (channel != channel[:, :1]).any():
        return None
    parts = {}
    for number in np.unique(call[:, 0]):
        mine = call[:, 0] == number
        parts[int(number)] = Slot(slot.unit, slot.channels[mine], channel[mine, :1], slot.readers)
    return parts
