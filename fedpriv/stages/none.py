"""No stage before training."""

from fedpriv.stages.base import Stage


class NoStage(Stage):
    pass
