"""The numbers of a repair beside naive ones: dense least squares, plain means and variances."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from secateur.channels.graph import trace
from secateur.channels.plan import Plan
from secateur.channels.surgery import prune
from secateur.repairing.least_squares import Start, choose, error, solve
from secateur.repairing.repair import repair
from secateur.scoring.layer_rows import grid_of, inputs_at, outputs_at, rows_of_weight, spots
from secateur.scoring.regression_sums import GramSums, KeptRows

KEEP = [0, 2, 5]


def pictures(count: int = 12, side: int = 6, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, side, side, generator=draw, dtype=torch.float64)


def naive(x: np.ndarray, y: np.ndarray, start: np.ndarray, ridge: float, constant: bool) -> np.ndarray:
    """Weights [o, n] (and last the constants) by one dense lstsq: the ridge is more rows, the constant a column."""
    middle = x - x.mean(0) if constant else x
    weight = np.sqrt(ridge * (middle**2).sum(0).mean()) * np.eye(x.shape[1])
    left, below = np.concatenate([x, weight]), weight @ start.T
    if constant:
        left = np.concatenate([left, np.r_[np.ones(len(x)), np.zeros(x.shape[1])][:, None]], axis=1)
    return np.linalg.lstsq(left, np.concatenate([y, below]), rcond=None)[0].T


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("rows", [40, 7])  # more and fewer than the 9 unknowns
def test_sums_and_rows_solve_the_same_problem_as_lstsq(rows: int, constant: bool) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(1.0, 1.0, (rows, 2, 9)), rng.normal(2.0, 1.0, (rows, 2, 4))
    start, bias = rng.normal(size=(2, 4, 9)), rng.normal(size=(2, 4))
    for kind in (GramSums, KeptRows):
        sums = kind()
        sums.add(torch.tensor(x[:3]), torch.tensor(y[:3]))
        rest = kind()
        rest.add(torch.tensor(x[3:]), torch.tensor(y[3:]))
        whole = sums + rest  # type: ignore[operator]
        assert whole.rows == rows
        for fit in solve(whole, Start(torch.tensor(start), torch.tensor(bias), constant), [1e-2, 1.0]):
            for group in range(2):
                target = y[:, group] if constant else y[:, group] - bias[group]
                want = naive(x[:, group], target, start[group], fit.ridge, constant)
                np.testing.assert_allclose(fit.weight[group], want[:, :9], rtol=1e-7, atol=1e-9)
                np.testing.assert_allclose(fit.constant[group], want[:, 9] if constant else bias[group], rtol=1e-7)
                off = y[:, group] - x[:, group] @ want[:, :9].T - fit.constant[group].numpy()
                np.testing.assert_allclose(error(whole, fit)[group], (off**2).mean(0), rtol=1e-6)
        np.testing.assert_allclose(whole.variance(), y.var(0), rtol=1e-9)


def test_the_ridge_is_the_one_that_does_best_on_held_out_rows() -> None:
    """20 rows of noise for 15 unknowns, and the truth is the start: the largest ridge must win. Without noise and away
    from the truth the smallest must."""
    rng = np.random.default_rng(1)
    truth = rng.normal(size=(1, 3, 15))
    x = rng.normal(size=(40, 1, 15))
    clean = np.einsum("rgn,gon->rgo", x, truth)
    for noise, start, want in ((3.0, truth, 10.0), (0.0, 0 * truth, 1e-4)):
        y = clean + noise * rng.normal(size=clean.shape)
        fitted, held, everything = GramSums(), GramSums(), GramSums()
        for sums, part in ((fitted, slice(0, 20)), (held, slice(20, 40)), (everything, slice(0, 40))):
            sums.add(torch.tensor(x[part]), torch.tensor(y[part]))
        fit = choose(fitted, held, Start(torch.tensor(start), torch.zeros(1, 3), True), [1e-4, 1e-2, 10.0])
        assert fit is not None
        assert fit.ridge == want
        again = solve(everything, Start(torch.tensor(start), torch.zeros(1, 3), True), [want])[0]
        assert torch.allclose(fit.weight, again.weight)  # the last word has all rows


def test_rows_times_weights_are_the_layer() -> None:
    x = pictures(3, side=7)
    layers: list[nn.Module] = [
        nn.Conv2d(3, 6, 3, stride=2, padding=1, groups=3),
        nn.Conv2d(3, 4, (3, 2), padding=(2, 0), dilation=(2, 1), padding_mode="circular"),
        nn.Linear(7, 4),
    ]
    for layer in layers:
        layer = layer.double()
        y = layer(x).detach()
        where = spots(3, grid_of(layer, y), 5, torch.Generator().manual_seed(0))
        assert all(len(set(row)) == 5 for row in where.tolist())
        rows = inputs_at(layer, x, where)
        mine = torch.einsum("ipgn,gon->ipgo", rows, rows_of_weight(layer)).flatten(2) + layer.bias.detach()
        assert torch.allclose(mine, outputs_at(layer, y, where), atol=1e-12)
    line = nn.Conv1d(3, 4, 3, padding=1).double()
    y = line(x[:, :, 0]).detach()
    where = spots(3, 7, 100, torch.Generator())
    assert where.tolist() == [list(range(7))] * 3
    mine = torch.einsum("ipgn,gon->ipgo", inputs_at(line, x[:, :, 0], where), rows_of_weight(line)).flatten(2)
    assert torch.allclose((mine + line.bias.detach()).mT, y, atol=1e-12)


def chain() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1)
    ).double()
    nn.init.uniform_(net[3].running_var, 0.5, 2.0)
    nn.init.normal_(net[3].running_mean)
    return net.eval()


@torch.no_grad()
def test_a_chain_is_solved_front_to_back() -> None:
    """Unfold, lstsq; put it in; unfold what the pruned network now computes, lstsq again."""
    model, images, ridge = chain(), pictures(), 0.03
    graph = trace(model, pictures(1))
    plan = Plan.of(graph, {"0:out": KEEP})
    got = repair(graph, plan, images, ridge=ridge)

    inner = F.relu(model[0](images))
    columns = F.unfold(inner[:, KEEP], 3).transpose(1, 2).reshape(-1, 27).numpy()
    middle = model[2](inner)
    want = naive(
        columns,
        middle.permute(0, 2, 3, 1).reshape(-1, 4).numpy(),
        model[2].weight[:, KEEP].flatten(1).numpy(),
        ridge,
        True,
    )
    np.testing.assert_allclose(got[2].weight.flatten(1), want[:, :27], rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(got[3].running_mean, model[3].running_mean.numpy() - want[:, 27], rtol=1e-8)

    weight, c = torch.tensor(want[:, :27]).view(4, 3, 3, 3), torch.tensor(want[:, 27]).view(1, 4, 1, 1)
    changed = F.relu(model[3](F.conv2d(inner[:, KEEP], weight) + c))
    target = model(images).permute(0, 2, 3, 1).reshape(-1, 2).numpy()
    last = naive(
        changed.permute(0, 2, 3, 1).reshape(-1, 4).numpy(), target, model[5].weight.flatten(1).numpy(), ridge, True
    )
    np.testing.assert_allclose(got[5].weight.flatten(1), last[:, :4], rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(got[5].bias, last[:, 4], rtol=1e-7)


class Residual(nn.Module):
    """Two blocks; the shortcut is called after the branch, as many networks do."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.stem, self.shortcut, self.inplace = nn.Conv2d(3, 4, 1), nn.Identity(), inplace
        self.a1, self.a2 = nn.Conv2d(4, 6, 3, padding=1), nn.Conv2d(6, 4, 3, padding=1, bias=False)
        self.b1, self.b2 = nn.Conv2d(4, 6, 3, padding=1), nn.Conv2d(6, 4, 3, padding=1, bias=False)
        self.na, self.nb = nn.BatchNorm2d(4), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = F.relu(self.na(self.a2(F.relu(self.a1(x)))) + self.shortcut(x), inplace=self.inplace)
        y = self.nb(self.b2(F.relu(self.b1(x), inplace=self.inplace)))
        if self.inplace:
            y += x
            return y
        return y + self.shortcut(x)


@pytest.mark.parametrize("inplace", [False, True])
@torch.no_grad()
def test_a_branch_makes_up_for_the_error_of_its_stream(inplace: bool) -> None:
    """The second branch is fitted to (stream behind the addition - stream of the pruned network), through its norm."""
    torch.manual_seed(0)
    model = Residual(inplace).double().eval()
    for norm in (model.na, model.nb):
        nn.init.uniform_(norm.running_var, 0.5, 2.0)
        nn.init.uniform_(norm.weight, 0.5, 2.0)
    images, ridge = pictures(), 0.02
    graph = trace(model, pictures(1))
    plan = Plan.of(graph, {"a1:out": KEEP, "b1:out": KEEP})
    got = repair(graph, plan, images, ridge=ridge, layers="cut")

    pruned = prune(graph, plan)
    pruned.a2.weight.copy_(got.a2.weight)  # the first block as it was repaired
    pruned.na.running_mean.copy_(got.na.running_mean)
    streams, inner = [], []
    for net in (model, pruned):
        stem = net.stem(images)
        stream = F.relu(net.na(net.a2(F.relu(net.a1(stem)))) + stem)
        streams.append(stream)
        inner.append(F.relu(net.b1(stream)))
    assert (streams[0] - streams[1]).abs().max() > 0.1
    scale = (model.nb.weight / (model.nb.running_var + model.nb.eps).sqrt()).view(1, 4, 1, 1)
    target = model.b2(inner[0]) + (streams[0] - streams[1]) / scale
    columns = F.unfold(inner[1], 3, padding=1).transpose(1, 2).reshape(-1, 27).numpy()
    start = model.b2.weight[:, KEEP].flatten(1).numpy()
    want = naive(columns, target.permute(0, 2, 3, 1).reshape(-1, 4).numpy(), start, ridge, True)
    np.testing.assert_allclose(got.b2.weight.flatten(1), want[:, :27], rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(got.nb.running_mean, model.nb.running_mean.numpy() - want[:, 27], rtol=1e-7)


@torch.no_grad()
def test_readers_of_a_stream_are_solved_behind_their_selection() -> None:
    """b1 stops reading stream channel 1; its weights are fitted on channels 0, 2 and 3."""
    torch.manual_seed(0)
    model = Residual().double().eval()
    images, ridge = pictures(), 0.05
    graph = trace(model, pictures(1))
    unit = next(n for n, u in graph.units.items() if n.startswith("b1:in"))
    got = repair(graph, Plan.of(graph, {unit: [0, 2, 3]}), images, ridge=ridge, layers="cut")
    stem = model.stem(images)
    stream = F.relu(model.na(model.a2(F.relu(model.a1(stem)))) + stem)
    columns = F.unfold(stream[:, [0, 2, 3]], 3, padding=1).transpose(1, 2).reshape(-1, 27).numpy()
    target = model.b1(stream).permute(0, 2, 3, 1).reshape(-1, 6).numpy()
    want = naive(columns, target, model.b1.weight[:, [0, 2, 3]].flatten(1).numpy(), ridge, True)
    np.testing.assert_allclose(got.b1.weight.flatten(1), want[:, :27], rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(got.b1.bias, want[:, 27], rtol=1e-7)


@torch.no_grad()
def test_norms_move_by_what_the_cut_has_changed() -> None:
    model, images = chain(), pictures(70)
    graph = trace(model, pictures(1))
    plan = Plan.of(graph, {"0:out": KEEP, "2:out": [1, 3]})
    steps: list[tuple[int, int]] = []
    got = repair(graph, plan, images, how="bn", progress=lambda *step: steps.append(step))
    before = model[2](F.relu(model[0](images)))[:, [1, 3]].numpy()
    cut = prune(graph, plan)
    after = cut[2](F.relu(cut[0](images))).numpy()
    mean = cut[3].running_mean.numpy() + after.mean((0, 2, 3)) - before.mean((0, 2, 3))
    variance = cut[3].running_var.numpy() * after.var((0, 2, 3)) / before.var((0, 2, 3))
    np.testing.assert_allclose(got[3].running_mean, mean, rtol=1e-9)
    np.testing.assert_allclose(got[3].running_var, variance, rtol=1e-9)
    assert torch.equal(got[2].weight, cut[2].weight)
    assert steps == [(1, 1)]


@torch.no_grad()
def test_a_norm_that_carries_a_selection_is_corrected_for_what_it_selects() -> None:
    torch.manual_seed(0)

    class PreActivation(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.a, self.b = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 5, 1), nn.Conv2d(5, 4, 1)
            self.n, self.c, self.d = nn.BatchNorm2d(4), nn.Conv2d(4, 5, 1), nn.Conv2d(5, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            x = x + self.b(F.relu(self.a(x)))
            return x + self.d(self.c(F.relu(self.n(x))))

    model, images = PreActivation().double().eval(), pictures()
    graph = trace(model, pictures(1))
    (unit,) = (n for n in graph.units if n.startswith("c:in"))
    plan = Plan.of(graph, {"a:out": [0, 1, 2], unit: [1, 2]})
    got = repair(graph, plan, images, how="bn")
    cut = prune(graph, plan)
    streams = [net.stem(images) + net.b(F.relu(net.a(net.stem(images)))) for net in (model, cut)]
    means = [s.mean((0, 2, 3))[[1, 2]].numpy() for s in streams]
    np.testing.assert_allclose(got.n.running_mean, means[1] - means[0], rtol=1e-9)
