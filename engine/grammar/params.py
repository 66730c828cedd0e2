"""Structured-output parameters of a request, with vLLM's names."""

from __future__ import annotations

import json as json_text
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blis_py.errors import InputError

FORMS = ("json", "regex", "choice", "grammar", "json_object")


@dataclass(frozen=True, kw_only=True)
class StructuredOutputsParams:
    """The form of an output, given in exactly one way.

    Raises:
        InputError: no form or several; a value of the wrong type.
    """

    json: str | Mapping[str, Any] | bool | None = None
    """A JSON schema, as text or as an object."""
    regex: str | None = None
    """A regular expression that the whole output matches. `\\d`, `\\w` and `\\s` mean ASCII."""
    choice: Sequence[str] | None = None
    """A list of texts, one of which is the output."""
    grammar: str | None = None
    """EBNF in GBNF notation, with a rule `root`."""
    json_object: bool | None = None
    """Any JSON object."""
    disable_any_whitespace: bool = False
    """Omit all optional whitespace in JSON."""

    def __post_init__(self) -> None:
        given = [form for form in FORMS if getattr(self, form) not in (None, False) or self._false(form)]
        if len(given) != 1:
            problem = f"says {' and '.join(given)}" if given else "says nothing"
            raise InputError(problem, key="structured_outputs", fix=f"give exactly one of {', '.join(FORMS)}")
        if not isinstance(self.json, str | Mapping | bool | None):
            raise InputError("must be a schema, or its text", key="structured_outputs.json", value=self.json)
        for form in ("regex", "grammar"):
            if not isinstance(getattr(self, form), str | None):
                raise InputError("must be text", key=f"structured_outputs.{form}", value=getattr(self, form))
        if isinstance(self.json, Mapping | bool):
            object.__setattr__(self, "json", _text(self.json))
        if self.choice is not None:
            object.__setattr__(self, "choice", _choices(self.choice))

    def _false(self, form: str) -> bool:
        """Whether the form is the JSON schema `false`, which nothing satisfies."""
        return form == "json" and self.json is False

    @property
    def form(self) -> str:
        """Name of the form that is set."""
        return next(form for form in FORMS if getattr(self, form) not in (None, False))


def _text(schema: Mapping[str, Any] | bool) -> str:
    try:
        return json_text.dumps(schema, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"is no JSON: {error}", key="structured_outputs.json") from None


def _choices(given: Sequence[str]) -> tuple[str, ...]:
    several = () if isinstance(given, str) else tuple(given)
    if not several or not all(isinstance(text, str) and text for text in several):
        fix = "give a list of texts, none of them empty"
        raise InputError(
            "holds nothing to choose from", key="structured_outputs.choice", value=given, fix=fix
        )
    return several


def form_of(
    given: StructuredOutputsParams | Mapping[str, Any] | None, guided: Mapping[str, Any]
) -> StructuredOutputsParams | None:
    """The structured-output form of a request, by its current name or by those of former vLLM versions.

    Args:
        given: `structured_outputs`; as a mapping, the fields of `StructuredOutputsParams`.
        guided: `guided_json` and its like, with None where absent.

    Raises:
        InputError: several forms, or an unknown field.
    """
    old = {name: value for name, value in guided.items() if value is not None}
    if old and given is not None:
        raise InputError("given twice", key=next(iter(old)), fix="drop it, or structured_outputs")
    if old:
        given = {name.removeprefix("guided_"): value for name, value in old.items()}
    if given is None or isinstance(given, StructuredOutputsParams):
        return given
    known = StructuredOutputsParams.__dataclass_fields__
    for name in given:
        if name not in known:
            key = f"structured_outputs.{name}"
            raise InputError("no such field", key=key, fix=f"use one of {', '.join(known)}")
    return StructuredOutputsParams(**given)
