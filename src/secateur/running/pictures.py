"""Writes pictures of a few channels on a few held-out images during a run, for its report."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from secateur.base.atomic_files import write_atomically
from secateur.channels.graph import ChannelGraph
from secateur.channels.plan import Plan
from secateur.errors import DataError
from secateur.measuring.tasks import is_classification
from secateur.pictures.image_choice import some_images
from secateur.pictures.run_pictures import NUM_IMAGES, PICTURES, take_pictures, to_bytes
from secateur.running.class_summary import class_names
from secateur.running.run_context import RunContext
from secateur.scoring.scores import Scores

logger = logging.getLogger(__name__)


def keep_pictures(context: RunContext, number: int, graph: ChannelGraph, scores: Scores, plan: Plan) -> None:
    """Write the pictures of the first round if they do not exist yet. Inputs that are not images have no pictures."""
    path = context.folder.round(number) / PICTURES
    if number != 1 or not context.folder.writes or path.exists():
        return
    try:
        few = some_images(context.data.holdout, context.settings.seed, NUM_IMAGES, context.task)
    except DataError as error:  # batches that only the user's own evaluate function can read
        logger.info("no pictures for the report: %s", error)
        return
    if few is None:
        return
    names: Sequence[str] | None = [f"image {number + 1}" for number in few[1]]
    if is_classification(context.task):
        names = class_names(context.data.holdout, max(few[1]) + 1)
    found = take_pictures(graph, scores, plan, *few, names)
    if found.units:
        write_atomically(path, to_bytes(found))
