"""Every error that secateur raises on purpose.

    SecateurError
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


class SecateurError(Exception):
    """The base class: `except SecateurError` catches every error that secateur raises on purpose."""


class TraceError(SecateurError):
    """The network cannot be followed."""


class PlanError(SecateurError):
    """A plan that does not fit the network."""


class FileError(SecateurError):
    """A file that is missing, truncated or of another kind."""


class ModelError(SecateurError):
    """A model name, factory or weight file that cannot be used."""


class DataError(SecateurError):
    """Images or labels that cannot be used."""


class ScoreError(SecateurError):
    """Statistics or a metric that cannot be computed."""


class DecideError(SecateurError):
    """A target, k or alpha that cannot be met."""


class RunError(SecateurError):
    """A run folder or a training run that cannot continue."""
