"""What an annotation of an option allows: whether a value fits it, and how that is said in words."""

import types
import typing
from collections.abc import Iterator
from typing import Any

from fedpriv.config.limits import ANY, LONGEST, MOST, WHOLE, Within

LISTED = 100_000  # values of a list


def misfit(value: Any, hint: Any) -> str | None:
    """What a value has to be by an annotation and is not."""
    if not _fits(value, hint):
        return f"must be {describe(hint)}"
    return _beyond(value, hint)


def _beyond(value: Any, hint: Any) -> str | None:
    """Which limit a value of the right type breaks."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        broken = [_beyond(value, a) for a in arguments if _fits(value, a)]
        return None if None in broken else broken[0]
    if isinstance(value, list | tuple):
        if len(value) > LISTED:
            return f"must have at most {LISTED:,} values"
        inner = arguments[0] if origin in (list, tuple) and arguments else Any
        return next((wrong for v in value if (wrong := _beyond(v, inner))), None)
    if isinstance(value, dict):
        return next((wrong for _, v in leaves(value, "") if (wrong := _beyond(v, Any))), None)
    if isinstance(value, str):
        return unreadable(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    own = next((a for a in arguments if isinstance(a, Within)), None) if origin is typing.Annotated else None
    if isinstance(value, int) and abs(value) > MOST:
        return WHOLE.broken(value)
    return (own or ANY).broken(value)


def _fits(value: Any, hint: Any) -> bool:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin is typing.Annotated:
        return _fits(value, arguments[0])
    if origin is typing.Literal:
        return any(value == a and type(value) is type(a) for a in arguments)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, a) for a in arguments)
    if hint in (None, type(None)):
        return value is None
    if origin in (list, tuple):
        inner = arguments[0] if arguments else Any
        return isinstance(value, list | tuple) and all(_fits(v, inner) for v in value)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return not isinstance(hint, type) or isinstance(value, hint)


def describe(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        own = next((a for a in arguments if isinstance(a, Within)), None)
        plain = "a whole number" if arguments[0] is int else "a number"
        return f"{plain}, {own.words()}" if own else describe(arguments[0])
    if origin is typing.Literal:
        return "one of " + ", ".join(map(str, arguments))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(describe(a) for a in arguments)
    if origin in (list, tuple):
        return "a list, each " + describe(arguments[0] if arguments else Any)
    names = {
        int: f"a whole number, {WHOLE.words()}",
        float: f"a number, {ANY.words()}",
        bool: "true or false",
        str: "a text",
        type(None): "null",
    }
    return names.get(hint, getattr(hint, "__name__", str(hint)))


def unreadable(text: str) -> str | None:
    if len(text) > LONGEST or not text.isprintable():
        return f"must be a text of one line and at most {LONGEST:,} characters"
    return None


def leaves(node: Any, key: str) -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict):
        for name, value in node.items():
            yield from leaves(value, f"{key}.{name}" if key else str(name))
    elif isinstance(node, list):
        for value in node:
            yield from leaves(value, key)
    else:
        yield key, node
