"""The pre-tokenizers that GGUF files name in ``tokenizer.ggml.pre``.

A pre-tokenizer is a list of regular expressions applied one after the other, each to the pieces that the ones before
left: matches become pieces of their own, and so does the text between them. BPE merges never cross a piece. The
expressions define a model's token ids, so they follow llama.cpp (``src/llama-vocab.cpp``), which names them.
"""

from __future__ import annotations

import dataclasses
import functools

from jaxllm.errors import UnsupportedModelError

_CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_LLAMA3 = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}|{_SYMBOLS}|{_SPACES}"

# llama.cpp approximates upper- and lower-case letters: a non-ASCII letter counts as both.
_UPPER = r"(?:(?=\p{L})[^a-z])"
_LOWER = r"(?:(?=\p{L})[^A-Z])"


def _cased_words(suffix: str) -> str:
    start = r"[^\r\n\p{L}\p{N}]?"
    return rf"{start}{_UPPER}*{_LOWER}+{suffix}|{start}{_UPPER}+{_LOWER}*{suffix}"


_SYMBOLS_AND_SLASHES = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_TEKKEN = rf"{_cased_words('')}|\p{{N}}|{_SYMBOLS_AND_SLASHES}|{_SPACES}"
_GPT4O = rf"{_cased_words(_CONTRACTIONS + '?')}|\p{{N}}{{1,3}}|{_SYMBOLS_AND_SLASHES}|{_SPACES}"

_KANJI_AND_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_ASCII_PUNCTUATION_WORD = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
_DEEPSEEK3_WORDS = rf"{_ASCII_PUNCTUATION_WORD}|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+"
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"

# The cased letters, as first and last code points in hexadecimal.
_CASED_LETTERS = """
0041-005a 0061-007a 00b5 00c0-00d6 00d8-00f6 00f8-01ba 01bc-01bf 01c4-0293 0295-02af 0370-0373 0376 0377 037b-037d 037f
0386 0388-038a 038c 038e-03a1 03a3-03f5 03f7-0481 048a-052f 0531-0556 10a0-10c5 13a0-13f5 13f8-13fd 1c90-1cba 1cbd-1cbf
1d00-1d2b 1d6b-1d77 1d79-1d9a 1e00-1f15 1f18-1f1d 1f20-1f45 1f48-1f4d 1f50-1f57 1f59 1f5b 1f5d 1f5f-1f7d 1f80-1fb4
1fb6-1fbc 1fbe 1fc2-1fc4 1fc6-1fcc 1fd0-1fd3 1fd6-1fdb 1fe0-1fec 1ff2-1ff4 1ff6-1ffc 2102 2107 210a-2113 2115 2119-211d
2124 2126 2128 212a-212d 212f-2134 2139 213c-213f 2145-2149 214e 2183 2184 2c00-2c7b 2c7e-2ce4 2ceb-2cee 2cf2 2cf3
a640-a66d a680-a69b a722-a76f a771-a787 a78b-a78e ab70-abbf fb00-fb06 fb13-fb17 ff21-ff3a ff41-ff5a 10400-1044f
104b0-104d3 104d8-104fb 10c80-10cb2 10cc0-10cf2 118a0-118df 1e900-1e943
"""


def _character_class(ranges: str) -> str:
    return "".join("-".join(chr(int(end, 16)) for end in item.split("-")) for item in ranges.split())


@dataclasses.dataclass(frozen=True)
class PreTokenizer:
    """How to cut text before BPE.

    patterns: regular expressions, applied in order.
    ignore_merges: a piece that is a token becomes that token, whatever the merges say.
    add_bos: prompts start with BOS unless the file says otherwise.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


@functools.cache
def _table() -> dict[str, PreTokenizer]:
    table: dict[str, PreTokenizer] = {}

    def add(names: str, *patterns: str, ignore_merges: bool = False, add_bos: bool = False) -> None:
        for name in names.split():
            table[name] = PreTokenizer(patterns, ignore_merges, add_bos)

    add("llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2", _LLAMA3, ignore_merges=True, add_bos=True)
    add("dbrx smaug-bpe glm4 chatglm-bpe", _LLAMA3)
    add("minicpm5", r"\p{N}{1,3}", rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}+|{_SYMBOLS}|{_SPACES}", ignore_merges=True)
    add("qwen2 deepseek-r1-qwen kormo megrez stablelm2 hunyuan solar-open grok-2", _QWEN2)
    add(
        "qwen35",
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
        rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}",
    )
    add("laguna", r"[^\n]+|[\n]+", _QWEN2)
    add("ufakzeka", rf"{_WORD}|\p{{N}}|{_SYMBOLS}|{_SPACES}")
    add("seed-coder", rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}")
    add(
        "bailingmoe bailingmoe2 llada-moe",
        rf"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|{_WORD}|\p{{N}}|{_SYMBOLS}|\s*[\r\n]|\s+(?!\S)|\s+",
    )
    add(
        "exaone-moe",
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
    )
    add(
        "jais-2",
        rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|\s*[\r\n]+|"
        + "|".join(rf"\s{{{n}}}(?!\S)" for n in ("512", "256", "128", "64", "32", "16", "8", "4", "1,2"))
        + r"|\s{1}",
    )
    add("tekken", _TEKKEN, ignore_merges=True, add_bos=True)
    add("gpt-4o llama4 kanana2 talkie minimax-m2", _GPT4O)

    add("gpt-2 phi-2 gigachat a.x-4.0 mellum exaone4 mpt olmo jais trillion granite-docling", _GPT2)
    add("starcoder refact command-r smollm codeshell exaone minerva-7b mellum2", r"\p{N}", _GPT2)
    add("falcon", r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")
    add("default", r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")
    add(
        "chameleon",
        r"<sentinel:[0-9]+>",
        r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
        r"([\t\n]|    |  )",
        r"\p{N}",
        r"[\p{P}!-/:-@\[-`{-~]",
        _GPT2,
        add_bos=True,
    )

    add(
        "deepseek-llm",
        r"[\r\n]",
        rf"\s?[{_character_class(_CASED_LETTERS)}]+",
        "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
        r"\s+$",
        _CJK,
        r"\p{N}+",
    )
    add("deepseek-coder", r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")
    add(
        "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
        r"\p{N}{1,3}",
        _KANJI_AND_KANA,
        rf"{_DEEPSEEK3_WORDS}[\r\n]*|{_SPACES}",
    )
    add(
        "spark2_5",
        r"\p{N}{1,3}",
        _KANJI_AND_KANA,
        rf"{_DEEPSEEK3_WORDS}|[\r\n]|\s+(?!\S)|\s+",
        r"\p{N}",
    )
    add("poro-chat bloom gpt3-finnish", _BLOOM)
    add("viking", _BLOOM, r"\p{N}")
    return table


def known_pre_tokenizers() -> tuple[str, ...]:
    """The names that ``pre_tokenizer`` knows, sorted."""
    return tuple(sorted(_table()))


def pre_tokenizer(name: str) -> PreTokenizer:
    """The pre-tokenizer of that name; ``UnsupportedModelError`` names those known when there is none."""
    try:
        return _table()[name]
    except KeyError:
        known = ", ".join(known_pre_tokenizers())
        raise UnsupportedModelError(
            f"tokenizer.ggml.pre={name!r} is not a pre-tokenizer that jaxllm knows. Known: {known}. "
            "The model's Hugging Face folder (tokenizer.json) can be used instead."
        ) from None
