"""Checked models: what is wrong in a file of parameters becomes one line for the person who wrote it."""

import difflib
import math
import sys
from types import UnionType
from typing import get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError


class OneLine:
    """Of errors whose text says all that their reader needs: IPython shows it in place of a traceback."""

    def _render_traceback_(self):
        return [f"{type(self).__name__}: {self}"]


class ConfigError(OneLine, ValueError):
    """A parameter is wrong. The message is one line for the person who wrote it."""


def exit_code(work, prefix="", errors=ConfigError):
    """Of a command: what work() returns, 0 for None, or 1 after the one line of an error on stderr, with the prefix."""
    try:
        return work() or 0
    except errors as error:
        print(f"{prefix}{error}", file=sys.stderr)
        return 1


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def validated(model, raw, prefix, source):
    """raw as a `model`, or ConfigError with all errors. prefix: where raw lies in the file; source: the file's name.

    Unknown keys are named first: a misspelt one is also a missing one, and the spelling is what its author can see.
    """
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        found = sorted(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
        raise ConfigError(f"{source}: " + "; ".join(_message(model, prefix, one) for one in found)) from None


def _message(model, prefix, error):
    place = ".".join(str(part) for part in (*([prefix] if prefix else []), *error["loc"]))
    if error["type"] == "extra_forbidden":
        return f"{place}: no such parameter{meant(str(error['loc'][-1]), _fields_at(model, error['loc'][:-1]))}"
    if error["type"] == "missing":
        return f"{place}: is missing"
    if error["type"] == "value_error" and isinstance(error["input"], dict):  # a section whose parts do not fit together
        return f"{place}: {error['ctx']['error']}"
    given, hint = error["input"], ""
    if isinstance(given, str) and error["type"] == "bool_type":
        hint = "; write true or false"
    if error["type"] in ("int_type", "float_type") and _reads_as_number(given):
        hint = "; this is text: write it without quotes"
    return f"{place} = {given!r}: {error['msg'][0].lower()}{error['msg'][1:]}{hint}"


def _reads_as_number(given):
    try:
        return isinstance(given, str) and math.isfinite(float(given))
    except ValueError:
        return False


def _fields_at(model, location):
    for part in location:
        annotation = model.model_fields[part].annotation if part in model.model_fields else None
        of = [each for each in get_args(annotation) if each is not type(None)]
        if get_origin(annotation) is dict:
            model = of[1]
        elif get_origin(annotation) in (list, UnionType):  # of a list the next part is a number
            model = of[0]
        elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
            model = annotation
    return list(model.model_fields) if hasattr(model, "model_fields") else []


def meant(given, known):
    """The end of an error message: the closest of the known names, or all of them."""
    known = list(known)
    close = difflib.get_close_matches(given, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; there are: {', '.join(known)}"
