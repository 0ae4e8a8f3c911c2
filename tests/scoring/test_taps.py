"""The tensors that a pass looks at: shared ones, those of layers called often, and those in front of activations."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import prunus as pr
from prunus.scoring.collect import collect
from tests import nets
from tests.scoring import naive
from tests.scoring.toys import CalledOften, batches, graph_of


class Fork(nn.Module):
    """Two layers read one tensor; a third reads what an in-place operation made of it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b, self.c = nets.conv(3, 4), nets.conv(4, 5), nets.conv(4, 6), nets.conv(4, 2)
        self.fc = nn.Linear(13, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        a, b = self.a(x), self.b(x)
        c = self.c(F.relu(x, inplace=True))
        return self.fc(nets.pooled(torch.cat([a, b, c], 1)))


def test_a_shared_tensor_is_looked_at_once() -> None:
    graph = graph_of(Fork)
    assert [r.module for r in graph.units["stem:out"].readers] == ["a", "b", "c"]
    taps = collect(graph, batches()).units["stem:out"]
    assert [[r.module for r in tap.readers] for tap in taps] == [["a", "b"], ["c"]]
    assert taps[0].moments.mean.min() < 0 <= taps[1].moments.mean.min()


class Activations(nn.Module):
    """One reader for each way to get there: a shared module, a function, in place, pooled, flattened, none."""

    def __init__(self) -> None:
        super().__init__()
        self.relu, self.pool = nn.ReLU(inplace=True), nn.MaxPool2d(2)
        self.a, self.b, self.c, self.d = nets.conv(3, 4), nets.conv(4, 4), nets.conv(4, 4), nets.conv(8, 2)
        self.fc1, self.fc2 = nn.Linear(32, 6), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.relu(self.a(x)))
        y = self.b(x)  # behind a pool behind an in-place ReLU
        z = F.silu(self.c(F.gelu(y)))  # behind a function
        x = F.leaky_relu(self.d(torch.cat([z, y], 1)), 0.1)  # half behind an activation, half behind none
        return self.fc2(torch.sigmoid(self.fc1(torch.flatten(x, 1))))  # flattened, then plain


def test_the_tensor_in_front_of_the_activation() -> None:
    graph, images = graph_of(Activations), batches()
    model = graph.model
    found = collect(graph, images, tap="before_activation")
    labels = naive.labels_of(images)
    outputs: dict[str, list[Tensor]] = {}
    handles = [
        model.get_submodule(n).register_forward_hook(
            lambda _, __, out, n=n: outputs.setdefault(n, []).append(out.detach().clone())
        )
        for n in ("a", "b", "c", "d", "fc1")
    ]
    with torch.no_grad():
        for x, _ in images:
            model(x)
    for handle in handles:
        handle.remove()
    raw = {name: torch.cat(parts).numpy() for name, parts in outputs.items()}
    for unit, layer in (("a:out", "a"), ("c:out", "c"), ("d:out", "d"), ("fc1:out", "fc1")):
        (tap,) = found.units[unit]
        values = raw[layer].reshape(30, raw[layer].shape[1], -1)
        for k in range(5):
            mine = values[labels == k]
            assert tap.moments.count[k] == mine[:, 0].size
            np.testing.assert_allclose(tap.moments.mean[k], mine.mean((0, 2)), rtol=1e-9)
            np.testing.assert_allclose(tap.moments.variance[k], mine.var((0, 2)), rtol=1e-9)
    through_gelu, through_none = found.units["b:out"]
    assert {r.module for r in through_gelu.readers} | {r.module for r in through_none.readers} == {"c", "d"}
    assert [note.partition(":")[0] for note in found.notes] == ["b"]
    assert "no activation right before d" in found.notes[0]
    torch.testing.assert_close(through_gelu.moments.m2, through_none.moments.m2)  # both are b's own output


def test_the_sum_in_front_of_a_residual_relu_and_the_input_of_a_layer_that_is_called_often() -> None:
    """There is an activation before two of its calls, but a tap in front of one of them would miss the others."""
    notes = collect(graph_of(CalledOften), batches(), tap="before_activation").notes
    assert any("often is called several times, so its input is scored" in note for note in notes)
    graph, images = graph_of(nets.Residual), batches()
    before = collect(graph, images, tap="before_activation")
    after = collect(graph, images)
    assert before.notes == ()
    (raw,), (rectified,) = before.units["conv1:in"], after.units["conv1:in"]
    assert raw.moments.mean.min() < 0 <= rectified.moments.mean.min()
    assert (raw.moments.mean < rectified.moments.mean + 1e-12).all()


def test_tokens_in_front_of_a_gelu() -> None:
    graph, images = graph_of(nets.ChannelsLast), batches()
    (tap,) = collect(graph, images, tap="before_activation").units["fc1:out"]
    stored = naive.inputs_of(graph.model, ["fc1"], images)["fc1"]
    fc1 = graph.model.get_submodule("fc1")
    with torch.no_grad():
        raw = F.linear(torch.from_numpy(stored), fc1.weight, fc1.bias).numpy()  # [N, H, W, 8]
    labels = naive.labels_of(images)
    for k in range(5):
        np.testing.assert_allclose(tap.moments.mean[k], raw[labels == k].mean((0, 1, 2)), rtol=1e-9)


def test_a_channel_selection_runs_first() -> None:
    graph, images = graph_of(nets.Residual), batches()
    plan = pr.Plan.of(graph, {"conv1:in": [0, 2], "conv1:out": [1, 3, 4]})
    small = pr.prune(graph, plan)
    pruned = pr.trace(small, graph.example)
    whole = collect(graph, images).units["conv1:in"][0].moments
    (part,) = collect(pruned, images).units["conv1:in"]
    assert pruned.units["conv1:in"].width == 2
    torch.testing.assert_close(part.moments.mean, whole.mean[:, [0, 2]], rtol=1e-12, atol=0)
    torch.testing.assert_close(part.moments.m2, whole.m2[:, [0, 2]], rtol=1e-12, atol=0)
