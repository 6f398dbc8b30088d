"""`contrasts.yaml`, read and checked: the claims with their criteria, the references of the main table, the groups of the
ablations."""

import inspect
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import create_model
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from ace.config.errors import ConfigError, Model, meant, validated
from ace.report.measure import MEASURES

FILE = Path(__file__).with_name("contrasts.yaml")


class Claim(Model):
    """measure: one of MEASURES, which takes the arguments; unit: of what is measured."""

    id: str
    claim: str
    paper: str
    source: str
    criterion: str
    unit: str
    measure: str
    arguments: dict[str, Any]

    def measured(self, runs, **changed):
        """`measure.Measured`, with some arguments changed; raises NotTested."""
        return MEASURES[self.measure](runs, **self.arguments | changed)


class Group(Model):
    """Variants that are compared. settings: the keys of params.yaml in which they differ, in most groups one; None: those of each
    variant.
    of_ace: whether the group is about a setting of ACE, and not about other conditions or methods."""

    title: str
    variants: list[str]
    settings: list[str] | None
    reference: str = "ace"
    of_ace: bool = True


class Contrasts(Model):
    references: list[str]
    claims: list[Claim]
    ablations: list[Group]


@cache
def load(path=FILE):
    """Contrasts, or ConfigError: one line with file, key and value."""
    path = Path(path)
    try:
        raw = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}" if where else ""
        raise ConfigError(f"{path.name}{line}: no YAML: {getattr(error, 'problem', error)}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path.name}: has no sections; there are {', '.join(Contrasts.model_fields)}")
    found = validated(Contrasts, raw, "", path.name)
    names = [*found.references, *(claim.id for claim in found.claims), *(group.title for group in found.ablations)]
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise ConfigError(f"{path.name}: {', '.join(twice)}: stands there more than once")
    for claim in found.claims:
        _check(claim, path.name)
    return found


def _check(claim, source):
    """A claim's measure is known and its arguments are those that the function takes, of their types."""
    if claim.measure not in MEASURES:
        raise ConfigError(f"{source}: {claim.id}.measure: there is no {claim.measure!r}{meant(claim.measure, MEASURES)}")
    _, *taken = inspect.signature(MEASURES[claim.measure]).parameters.values()
    fields = {p.name: (p.annotation, ... if p.default is p.empty else p.default) for p in taken}
    validated(create_model(claim.measure, __base__=Model, **fields), claim.arguments, f"{claim.id}.arguments", source)
