"""Several loggers at once, each as it is alone."""

from pathlib import Path
from typing import Any

from fedpriv.config.catalogue import contents
from fedpriv.config.options import options_of, target_of
from fedpriv.errors import UserError
from fedpriv.loggers.base import Logger


class Several(Logger):
    def __init__(self, *, of: list[str] = ["wandb"], options: dict[str, Any] = {}) -> None:  # noqa: B006
        """`options` holds what each is told: logger.options.wandb.project=mine."""
        known = {name: content for name, content in contents("logger").items() if name != "several"}
        if unknown := [name for name in [*of, *options] if name not in known]:
            raise UserError(f"logger.of={list(of)}: no logger {unknown[0]}; choose from {', '.join(known)}")
        if unused := [name for name in options if name not in of]:
            raise UserError(f"logger.options.{unused[0]}: is not among logger.of={list(of)}")
        self.loggers: list[Logger] = []
        for name in dict.fromkeys(of):
            told = options.get(name) or {}
            if wrong := [key for key in told if key not in options_of("logger", known[name])]:
                raise UserError(f"logger.options.{name}.{wrong[0]}: no such option of logger={name}")
            self.loggers.append(target_of("logger", known[name])(**told))

    @property
    def complete(self) -> bool:  # type: ignore[override]
        return all(logger.complete for logger in self.loggers)

    def start(self, *, name: str, config: dict[str, Any], folder: Path) -> None:
        for logger in self.loggers:
            logger.start(name=name, config=config, folder=folder)

    def log(self, row: dict[str, Any]) -> None:
        for logger in self.loggers:
            logger.log(row)

    def finish(self, summary: dict[str, Any], tables: dict[str, Path]) -> None:
        for logger in self.loggers:
            logger.finish(summary, tables)
