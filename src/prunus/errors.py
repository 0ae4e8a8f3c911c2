"""Every error that prunus raises on purpose.

    PrunusError
    ├── TraceError          the network cannot be followed (torch.fx failed, lazy modules, wrong example)
    ├── PlanError           a plan that does not fit (another network, indices, granules, nothing left)
    ├── FileError           a file that is missing, truncated or of another kind
    ├── ModelError          a model name, factory or weight file that cannot be used
    ├── DataError           images or labels that cannot be used
    ├── ScoreError          statistics or a metric that cannot be computed
    ├── DecideError         a target, k or alpha that cannot be met
    └── RunError            a run folder or a training run that cannot continue

Each message says what was expected, what came, and what to do; it names the module or file concerned.
"""


class PrunusError(Exception):
    """The base class: `except PrunusError` catches every error that prunus raises on purpose."""


class TraceError(PrunusError):
    """The network cannot be followed."""


class PlanError(PrunusError):
    """A plan that does not fit the network."""


class FileError(PrunusError):
    """A file that is missing, truncated or of another kind."""


class ModelError(PrunusError):
    """A model name, factory or weight file that cannot be used."""


class DataError(PrunusError):
    """Images or labels that cannot be used."""


class ScoreError(PrunusError):
    """Statistics or a metric that cannot be computed."""


class DecideError(PrunusError):
    """A target, k or alpha that cannot be met."""


class RunError(PrunusError):
    """A run folder or a training run that cannot continue."""
