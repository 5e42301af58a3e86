"""What a target can be given: its options, their defaults and annotations.

A target of this package is read from its source and not imported: naming a run or refusing a value then needs
neither torch nor whatever else the eleven parts of a run import. What the source does not say plainly, and
every target of somebody else, is imported and asked.
"""

import ast
import builtins
import importlib
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import fedpriv

_PACKAGE = fedpriv.__name__
_ROOT = Path(fedpriv.__file__).parent
_LIGHT = ("typing", "math", "pathlib", "collections.abc", f"{_PACKAGE}.config.limits")  # may be imported


@dataclass(frozen=True)
class Signature:
    name: str
    parameters: Mapping[str, inspect.Parameter]
    hints: Mapping[str, Any]  # what each may be, limits included


class _Unclear(Exception):
    """The source does not say it plainly."""


@cache
def written(path: str) -> Signature | None:
    """The signature of a class or function of this package, from its source; None: import it and ask."""
    module, _, name = path.rpartition(".")
    try:
        source = _source(module)
        return _read(name, *_callable(source, name)) if source and name in source.defined else None
    except _Unclear:
        return None


def asked(target: Callable[..., Any], name: str) -> Signature:
    """The signature of what is imported already; raises what asking it raises."""
    own: Any = target.__init__ if inspect.isclass(target) else target
    hints = typing.get_type_hints(own, include_extras=True)
    return Signature(getattr(target, "__name__", name), inspect.signature(target).parameters, hints)


class _Source:
    """A module's top level, unexecuted: what it defines, assigns and imports."""

    def __init__(self, module: str, tree: ast.Module):
        self.module = module
        self.defined: dict[str, ast.ClassDef | ast.FunctionDef] = {}
        self.assigned: dict[str, ast.expr] = {}
        self.imported: dict[str, tuple[str, str]] = {}
        for node in tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                self.defined[node.name] = node
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.assigned[node.targets[0].id] = node.value
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
                self.assigned[node.target.id] = node.value
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for each in node.names:
                    self.imported[each.asname or each.name] = (node.module, each.name)
            elif isinstance(node, ast.Import):
                for each in node.names:
                    self.imported[each.asname or each.name] = (each.name, "")


@cache
def _source(module: str) -> _Source | None:
    first, *rest = module.split(".")
    file = _ROOT.joinpath(*rest).with_suffix(".py")
    if first != _PACKAGE or not rest or not file.is_file():
        return None
    return _Source(module, ast.parse(file.read_text(encoding="utf-8")))


def _callable(source: _Source, name: str) -> tuple[_Source, ast.FunctionDef | None]:
    """The function that takes the options, and the module it is written in; None: a class without one."""
    node = source.defined[name]
    if node.decorator_list:
        raise _Unclear(name)
    if isinstance(node, ast.FunctionDef):
        return source, node
    for part in node.body:
        if isinstance(part, ast.FunctionDef) and part.name in ("__init__", "__new__"):
            if part.decorator_list or part.name == "__new__":
                raise _Unclear(name)
            return source, part
    if node.keywords and any(k.arg == "metaclass" for k in node.keywords):
        raise _Unclear(name)
    for base in node.bases:  # the first that has one; a class of elsewhere, such as ABC, is not looked into
        if not isinstance(base, ast.Name):
            raise _Unclear(name)
        there, known = (source, base.id) if base.id in source.defined else _elsewhere(source, base.id)
        if there is None:
            if (source.imported.get(base.id) or ("", ""))[0] not in ("abc", "typing"):
                raise _Unclear(name)
            continue
        found = _callable(there, known)
        if found[1] is not None:
            return found
    return source, None


def _elsewhere(source: _Source, name: str) -> tuple[_Source | None, str]:
    """Where a name that a module imports is defined, if that is in this package."""
    module, known = source.imported.get(name, ("", ""))
    there = _source(module)
    return (there, known) if there and known in there.defined else (None, known)


def _read(name: str, source: _Source, function: ast.FunctionDef | None) -> Signature:
    if function is None:
        return Signature(name, {}, {})
    parameters, hints = {}, {}
    for argument, kind, default in _arguments(function.args):
        if argument.arg == "self":
            continue
        value = inspect.Parameter.empty if default is None else _value(default, source)
        parameters[argument.arg] = inspect.Parameter(argument.arg, kind, default=value)
        if argument.annotation is not None:
            hints[argument.arg] = _value(argument.annotation, source)
    return Signature(name, parameters, hints)


def _arguments(given: ast.arguments) -> Iterator[tuple[ast.arg, Any, ast.expr | None]]:
    if given.vararg or given.kwarg or given.posonlyargs:
        raise _Unclear("more than named options")
    plain = [None] * (len(given.args) - len(given.defaults)) + given.defaults
    for argument, default in zip(given.args, plain, strict=True):
        yield argument, inspect.Parameter.POSITIONAL_OR_KEYWORD, default
    for argument, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        yield argument, inspect.Parameter.KEYWORD_ONLY, default


def _value(node: ast.expr, source: _Source) -> Any:
    """An expression of names and literals, of which only light modules are imported."""
    try:
        return eval(compile(ast.Expression(node), source.module, "eval"), {}, _Names(source))
    except _Unclear:
        raise
    except Exception as problem:  # whatever an expression raises that was not meant to be read like this
        raise _Unclear(str(problem)) from problem


class _Names(dict[str, Any]):
    """What the names of a module stand for, looked up when asked for."""

    def __init__(self, source: _Source):
        self.source = source

    def __missing__(self, name: str) -> Any:
        source = self.source
        if name in source.assigned:
            return _value(source.assigned[name], source)
        if name in source.imported:
            module, known = source.imported[name]
            if module in _LIGHT:
                found = importlib.import_module(module)
                return getattr(found, known) if known else found
            there = _source(module)
            if there and known in there.assigned:
                return _value(there.assigned[known], there)
        if hasattr(builtins, name) and name not in source.defined:
            return getattr(builtins, name)
        raise _Unclear(name)
