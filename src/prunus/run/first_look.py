"""What a run looks at before it works: the weights, and a batch of every loader. Errors name the cause."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from prunus.errors import DataError, ModelError, PrunusError
from prunus.run.context import RunData
from prunus.run.settings import Settings
from prunus.scoring.metrics import check_fits, metric_of
from prunus.tasks import Task, task_of
from prunus.tasks.agreement import agreement
from prunus.tasks.evaluate import unpack_for
from prunus.util.batches import Batches, call, count_images, device_of, move, to_device
from prunus.util.processes import all_or_none
from prunus.util.state import evaluating, generators_kept
from prunus.util.user_code import failure

logger = logging.getLogger(__name__)


def look_first(model: nn.Module, data: RunData, settings: Settings) -> Settings:
    """The settings, whose task is agreement with `model` if the held-out images have no labels.

    ModelError if a weight is NaN or infinite. DataError, which names the loader, if one cannot be read, has images that
    the network does not take, or labels that do not fit.
    """
    return all_or_none(lambda: _look(model, data, settings))


def _look(model: nn.Module, data: RunData, settings: Settings) -> Settings:
    check_weights(model)
    task, loaders = task_of(settings.task), {name: loader for name, loader in vars(data).items() if loader is not None}
    _warn_of_shared({name: loader for name, loader in loaders.items() if name != "score_on"})
    if data.score_on is data.train:
        del loaders["score_on"]
    elif settings.fit is not None:  # batches that only user-provided functions read may be anything
        del loaders["train"]
    if settings.evaluate is not None:
        del loaders["holdout"]
        loaders.pop("test", None)
    looks = {name: first_batch(loader, name, task) for name, loader in loaders.items()}
    for look in looks.values():
        look.check_runs(model, task, looks.get("train"))
    if "holdout" not in looks:
        return settings
    if task.reference is None and looks["holdout"].labels is None:
        task = agreement(model, task)
        logger.warning("the held-out images have no labels: quality is %s", task.measured.name)
        settings = replace(settings, task=task)
    if task.reference is not None:
        if isinstance(settings.metric, str):
            check_fits([metric_of(settings.metric)], task)
        return settings
    for name in ("test", *(["train"] if settings.retrains_at_all else [])):
        if name in looks and looks[name].labels is None:
            raise DataError(
                f"{name}: its images have no labels, and those of holdout have. Give labels to both, or to neither: "
                "then quality is agreement with the original network"
            )
    return settings


def check_weights(model: nn.Module) -> None:
    """ModelError if a weight or a buffer is NaN or infinite."""
    for name, tensor in model.state_dict().items():
        if isinstance(tensor, Tensor) and tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            count = int((~tensor.isfinite()).sum())
            raise ModelError(
                f"{count:,} of {tensor.numel():,} numbers of {name} are NaN or infinite: the network's weights are "
                "damaged, or its training diverged. Load other weights"
            )


def _warn_of_shared(loaders: Mapping[str, Batches]) -> None:
    """A warning if two of train, holdout and test are the same images: one loader, or all of one data set."""

    def images(loader: Batches) -> object:
        if isinstance(loader, DataLoader):
            sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
            if isinstance(sampler, SequentialSampler | RandomSampler):
                return loader.dataset
        return loader

    for (one, a), (other, b) in combinations(loaders.items(), 2):
        if images(a) is images(b):
            why = "figures on images that decided are too good"
            if {one, other} == {"train", "holdout"}:
                why = "decisions need images that the network was not trained on"
            logger.warning("%s and %s are the same images: %s", one, other, why)


@dataclass(frozen=True, eq=False)
class Look:
    """The first batch of a loader."""

    name: str
    images: Any
    labels: Any  # None if there are none

    @property
    def shape(self) -> str:
        return " and ".join(str(list(x.shape[1:])) for x in tree_leaves(self.images) if isinstance(x, Tensor))

    def check_runs(self, model: nn.Module, task: Task, train: Look | None) -> None:
        """DataError unless the network takes the first image, and its output fits the labels of the batch."""
        count = count_images(self.images)
        if not count:
            return
        one = tree_map(lambda x: x[:1].clone() if isinstance(x, Tensor) else x, self.images)
        with evaluating(model), generators_kept(), torch.no_grad():
            try:
                output = call(model, move(one, device_of(model)))
            except Exception as error:  # the network's own code may raise anything
                others = (
                    "" if train in (None, self) or train.shape == self.shape else f" (those of train: {train.shape})"
                )
                raise DataError(
                    f"{self.name}: the network does not run on its images, {self.shape}{others}: {failure(error)}"
                ) from error
            if self.labels is None or task.reference is not None:
                return
            try:
                outputs = output if task.outputs is None else task.outputs(output)
                # The labels of all images, beside the output of the first one.
                if task.check is not None and task.label_kind == "boxes":
                    task.check(outputs, self.labels, 0)
                elif isinstance(outputs, Tensor) and outputs.ndim and len(outputs) == 1 and task.check is not None:
                    task.check(outputs.expand(count, *outputs.shape[1:]), to_device(self.labels, outputs.device), 0)
            except PrunusError as error:
                raise type(error)(f"{self.name}: {error}") from error


def first_batch(loader: Batches, name: str, task: Task) -> Look:
    """The first batch of a loader; DataError with the loader's name if there is none, or if it cannot be read."""
    with generators_kept():  # a loader that shuffles draws random numbers
        try:
            batch = next(iter(loader))
        except StopIteration:
            raise DataError(f"{name}: the loader gave no images; check the part, split and limit") from None
        except PrunusError as error:
            raise type(error)(f"{name}: {error}") from error
        except Exception as error:  # a user-provided data set may raise anything
            raise DataError(f"{name}: its first batch cannot be read: {failure(error)}") from error
    try:
        images, labels = unpack_for(task, batch, 0, labelled=False)
        count_images(images)
    except PrunusError as error:
        raise type(error)(f"{name}: {error}") from error
    return Look(name, images, labels)
