"""Label tensors against plain torch on tensors that are not expanded."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
import torch.fx

from prunus.graph.labels import along, broadcast_shape, compact, constant_along, match, pick, present, varying

SHAPES = [(), (1,), (3,), (2, 1), (2, 3), (1, 3), (4, 1, 3), (4, 2, 1), (0, 3), (5,)]


def test_broadcasting_is_torch_s() -> None:
    for a, b in itertools.product(SHAPES, SHAPES):
        try:
            want = torch.broadcast_shapes(a, b)
        except RuntimeError:
            with pytest.raises(RuntimeError):
                broadcast_shape(torch.Size(a), torch.Size(b))
        else:
            assert broadcast_shape(torch.Size(a), torch.Size(b)) == want


def test_an_expanded_tensor_is_compact_in_one_view() -> None:
    vector = torch.tensor([7, 3, 9])
    labels = along(vector, (2, 3, 4, 5), 1)
    assert labels.shape == (2, 3, 4, 5) and torch.equal(labels[1, :, 2, 3], vector)
    small = compact(labels)
    assert small.shape == (1, 3, 1, 1) and small.data_ptr() == vector.data_ptr()
    part = labels[:, 1:]  # a view that begins elsewhere in memory
    assert torch.equal(compact(part).reshape(-1), vector[1:])
    assert compact(vector) is vector


def test_where_labels_vary() -> None:
    labels = along(torch.tensor([4, 4, 6]), (2, 3, 5), 1)
    assert varying(labels) == [1]
    assert varying(labels[:, :2]) == []  # two positions of one channel
    assert constant_along(labels, 0) and constant_along(labels, 2) and not constant_along(labels, 1)
    assert present(labels).tolist() == [4, 6]
    assert present(along(torch.tensor([-1, 2, -2]), (3, 2), 0)).tolist() == [2]


def test_picking_is_index_select() -> None:
    labels = along(torch.tensor([4, 5, 6]), (2, 3, 5), 1)
    index = torch.tensor([2, 0])
    assert torch.equal(pick(labels, 1, index), labels.contiguous().index_select(1, index))
    assert torch.equal(pick(labels, 2, index), labels.contiguous().index_select(2, index))


def test_the_kth_occurrence_matches_the_kth() -> None:
    have = np.array([5, 7, 5, 9, 7, 5])
    assert match(have, np.array([7, 5, 5])).tolist() == [1, 0, 2]  # type: ignore[union-attr]
    assert match(have, np.array([9, 7, 7])).tolist() == [3, 1, 4]  # type: ignore[union-attr]
    assert match(have, np.array([9, 9])) is None
    assert match(have, np.array([6])) is None
    assert match(have, np.array([], dtype=np.int64)).tolist() == []  # type: ignore[union-attr]
