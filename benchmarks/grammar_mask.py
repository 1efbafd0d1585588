"""What does a grammar cost, and is what a JSON schema says enforced?

For each library: how large it is with what it requires beyond jaxllm, how long it takes to import, to compile typical
grammars for the vocabulary of the default model, and to compute the mask for each token of typical outputs; what jaxllm
pays in a whole step of many requests; and which features of JSON schemas it enforces, refuses or silently ignores.

``llguidance`` is what jaxllm uses. ``xgrammar`` is measured beside it where it is installed. It imports torch, for
helpers that are not used here; where torch is missing an empty module stands in for it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from grammar_libraries import (
    JaxLLM,
    Library,
    LLGuidance,
    Matcher,
    XGrammar,
    closure,
    import_seconds,
    import_xgrammar,
    weight,
)
from harness import describe_machine, format_table, machine_line, write_json
from schema_features import FEATURES, Feature

from jaxllm.errors import JaxLLMError
from jaxllm.structured import fill_masks
from jaxllm.tokenization import Tokenizer, from_gguf
from jaxllm.weights.gguf_header import read_header
from jaxllm.weights.packaged import PACKAGED_MODELS, packaged_file

PERSON = {
    "type": "object", "required": ["name", "age", "tags"], "additionalProperties": False,
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0},
                   "tags": {"type": "array", "items": {"type": "string"}}},
}
CALLS = {
    "$defs": {"step": {
        "type": "object", "required": ["tool", "arguments"], "additionalProperties": False,
        "properties": {"tool": {"enum": ["search", "read", "write", "run"]}, "arguments": {"type": "object"},
                       "then": {"anyOf": [{"$ref": "#/$defs/step"}, {"type": "null"}]}}}},
    "type": "array", "items": {"$ref": "#/$defs/step"}, "maxItems": 4,
}
WORDS = [f"{number * 7919 % 100_003} street" for number in range(1000)]
JSON_GBNF = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? ws
ws     ::= "" | " " | "\n" [ \t]{0,20}
"""
PERSON_TEXT = '{"name": "Ada Lovelace, comtesse de \\"Éclair\\"", "age": 36, "tags": ["mathematics", "poetry", "東京"]}'
CALLS_TEXT = ('[{"tool": "search", "arguments": {"query": "weather in Paris", "days": [1, 2.5e3, null]}, "then": '
              '{"tool": "write", "arguments": {"path": "notes.txt", "force": true}, "then": null}}]')


@dataclasses.dataclass(frozen=True)
class Case:
    """A grammar and an output that it allows."""

    name: str
    params: dict[str, Any]
    text: str


CASES = (
    Case("schema: flat", {"json": PERSON}, PERSON_TEXT),
    Case("schema: recursive", {"json": CALLS}, CALLS_TEXT),
    Case("schema: enum of 1,000", {"json": {"enum": WORDS}}, json.dumps(WORDS[77])),
    Case("any JSON object", {"json_object": True}, PERSON_TEXT),
    Case("regex", {"regex": r"[A-Z][a-z]+ [A-Z][a-z]+ <[a-z0-9.]+@[a-z0-9.]+>, \d{4}-\d{2}-\d{2}"},
         "Grace Hopper <grace.hopper@navy.example>, 1906-12-09"),
    Case("choice of 4", {"choice": ["positive", "negative", "neutral", "no idea"]}, "negative"),
    Case("GBNF: JSON", {"grammar": JSON_GBNF}, PERSON_TEXT),
)


@dataclasses.dataclass(frozen=True)
class Cost:
    """Compile time in ms, the first mask included; mask times in microseconds over the tokens of the output: median
    and largest, and the largest of the first text after compilation, when the library has nothing remembered yet."""

    case: str
    library: str
    tokens: int
    compile_ms: float
    median_us: float
    max_us: float
    first_max_us: float


def default_tokenizer() -> Tokenizer:
    """The tokenizer of the default model."""
    return from_gguf(read_header(packaged_file(PACKAGED_MODELS[0])).metadata)


def measure(case: Case, library: Library, tokenizer: Tokenizer, repeat: int) -> Cost:
    """Compile and match a case; each time, of compilation and of each mask, is a median of ``repeat`` runs."""
    ids = tokenizer.encode(case.text, add_special_tokens=False, parse_special=False)
    row = np.zeros(library.num_words, np.uint32)
    compiled, first, again = [], [], []
    for _ in range(repeat):
        started = time.perf_counter()
        make = library.compile(case.params)
        make().mask(row)
        compiled.append(1e3 * (time.perf_counter() - started))
        first.append(_mask_times(make(), ids, row))
        again.append(_mask_times(make(), ids, row))
    masks, first_masks = ([statistics.median(times) for times in zip(*runs, strict=True)] for runs in (again, first))
    return Cost(case.name, library.name, len(ids), statistics.median(compiled),
                statistics.median(masks), max(masks), max(first_masks))


def _mask_times(matcher: Matcher, ids: Sequence[int], row: np.ndarray) -> list[float]:
    """Microseconds of the mask before each token and at the end."""
    times = []
    for token_id in (*ids, None):
        started = time.perf_counter()
        matcher.mask(row)
        times.append(1e6 * (time.perf_counter() - started))
        if token_id is not None and not matcher.accept(token_id):
            raise RuntimeError(f"token {token_id} is refused")
    if not matcher.accepting():
        raise RuntimeError("the text is not complete")
    return times


def step_cost(tokenizer: Tokenizer, requests: int, repeat: int) -> list[tuple[str, float]]:
    """Milliseconds of all masks and all ``accept`` of a step, per case: the median over steps in which the requests are
    at different places of the output."""
    library, results = JaxLLM(tokenizer), []
    rows = np.zeros((requests, -(-tokenizer.vocab_size // 32)), np.uint32)
    for case in CASES:
        make = library.compile(case.params)
        ids = tokenizer.encode(case.text, add_special_tokens=False, parse_special=False)
        times = []
        for _ in range(repeat):
            matchers: list[Any] = [make() for _ in range(requests)]
            inner = [matcher.matcher for matcher in matchers]
            for number, matcher in enumerate(inner):
                for token_id in ids[: number % len(ids)]:
                    matcher.accept(token_id)
            started = time.perf_counter()
            fill_masks(inner, rows)
            for number, matcher in enumerate(inner):
                matcher.accept(ids[number % len(ids)])
            times.append(1e3 * (time.perf_counter() - started))
        results.append((case.name, statistics.median(times)))
    return results


def verdict(feature: Feature, library: Library, tokenizer: Tokenizer) -> str:
    """What a library does about a feature of JSON schemas."""
    try:
        make = library.compile({"json": feature.schema})
    except (ValueError, RuntimeError):
        return "refused"
    valid, invalid = (_matches(make(), text, tokenizer) for text in (feature.valid, feature.invalid))
    if invalid:
        return "IGNORED"
    return "enforced" if valid else "too strict"


def _matches(matcher: Matcher, text: str, tokenizer: Tokenizer) -> bool:
    ids = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
    return all(map(matcher.accept, ids)) and matcher.accepting()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 1 if jaxllm ignores anything that a schema says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=64, help="requests of a step (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=9, help="timed runs of each (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    chosen = parser.parse_args(arguments)
    try:
        tokenizer = default_tokenizer()
    except JaxLLMError as error:
        parser.error(str(error))
    module = import_xgrammar()
    libraries: list[Library] = [JaxLLM(tokenizer), LLGuidance(tokenizer)]
    libraries += [XGrammar(tokenizer, module)] if module is not None else []
    machine = describe_machine()
    print(f"{machine_line(machine)}\nvocabulary of {tokenizer.vocab_size} tokens; medians of {chosen.repeat}\n")

    had = closure("jaxllm")
    sizes = [(name, *weight(name, had), import_seconds(name, 3)) for name in ("llguidance", "xgrammar")
             if name == "llguidance" or module is not None]
    print(format_table(("library", "MiB beyond jaxllm", "import s", "required and not installed"), (
        (name, f"{size:.1f}", "-" if seconds is None else f"{seconds:.2f}", ", ".join(missing) or "-")
        for name, size, missing, seconds in sizes)))

    timed = [library for library in libraries if library.name != "llguidance"]
    costs = [measure(case, library, tokenizer, chosen.repeat) for case in CASES for library in timed]
    header = ("grammar", "library", "tokens", "compile ms", "mask us, median", "largest", "at first")
    print("\n" + format_table(header, (
        (cost.case, cost.library, cost.tokens, f"{cost.compile_ms:.1f}", f"{cost.median_us:.0f}", f"{cost.max_us:.0f}",
         f"{cost.first_max_us:.0f}") for cost in costs)))

    steps = step_cost(tokenizer, chosen.requests, chosen.repeat)
    print("\n" + format_table((f"{chosen.requests} requests", "ms per step"),
                              ((name, f"{milliseconds:.2f}") for name, milliseconds in steps)))

    verdicts = {feature.name: [verdict(feature, library, tokenizer) for library in libraries] for feature in FEATURES}
    print("\n" + format_table(("JSON schema", *(library.name for library in libraries)), (
        (name, *each) for name, each in verdicts.items())))
    names = [library.name for library in libraries]
    write_json(chosen.json, {
        "machine": machine, "vocab_size": tokenizer.vocab_size, "costs": [dataclasses.asdict(cost) for cost in costs],
        "sizes": [dict(zip(("library", "mib", "missing", "import_s"), each, strict=True)) for each in sizes],
        "steps_ms": dict(steps),
        "features": {name: dict(zip(names, each, strict=True)) for name, each in verdicts.items()}})
    ignored = [name for name, each in verdicts.items() if each[0] not in ("enforced", "refused")]
    if ignored:
        print(f"\njaxllm does not enforce, and does not refuse either: {', '.join(ignored)}")
    return int(bool(ignored))


if __name__ == "__main__":
    raise SystemExit(main())
