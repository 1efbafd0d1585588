"""Log-likelihoods: which tokens belong to the continuation, and their numbers against numpy on the table."""

from __future__ import annotations

import io

import numpy as np
import pytest
import tokenizers
from scripted_model import SIZE, llm_on, path_table
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tqdm import tqdm

from jaxllm import ParameterError
from jaxllm.scoring import encode_pair, score
from jaxllm.tokenization import Tokenizer

pytestmark = pytest.mark.case(37)

WORDS = ["a", "b", "c", "ab", " ", " a", " b", "\n", "<s>", "</s>"]


def _tokenizer(bos="<s>", eos="</s>", adds=("<s>",), normalizer=None):
    """BPE over a few letters: "ab", " a" and " b" are tokens. ``adds``: what it puts before, and after, a text."""
    letters = {"a": 0, "b": 1, "c": 2, "Ġ": 3, "Ċ": 4, "ab": 5, "Ġa": 6, "Ġb": 7}
    backend = tokenizers.Tokenizer(models.BPE(letters, [("a", "b"), ("Ġ", "a"), ("Ġ", "b")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in ("<s>", "</s>")])
    if adds:
        ids = [(token, backend.token_to_id(token)) for token in set(adds)]
        backend.post_processor = processors.TemplateProcessing(f"{adds[0]} $A {' '.join(adds[1:])}".strip(),
                                                               special_tokens=ids)
    named = {"<s>": 8, "</s>": 9, None: None}
    return Tokenizer(backend, bos_token_id=named[bos], eos_token_ids=[] if eos is None else [named[eos]])


def _split(context, continuation, **options):
    tokenizer = _tokenizer(**options)
    pair = encode_pair(tokenizer, context, continuation)
    shown = [tokenizer.token_text(token) for token in pair.token_ids]
    assert pair.continuation_ids == pair.token_ids[pair.start:]
    return shown[:pair.start], shown[pair.start:]


@pytest.mark.parametrize(("context", "continuation", "tokens"), [
    ("c", " a", (["c"], [" a"])),
    ("c ", "a", (["c"], [" a"])),
    ("c  ", "a", (["c"], [" ", " a"])),
    ("c \n", "a", (["c"], [" ", "\n", "a"])),
    ("c", "ab", (["c"], ["ab"])),
    ("ca", "b", (["c"], ["ab"])),
    ("c", "a b", (["c"], ["a", " b"])),
    ("ca ", " b", (["c", "a"], [" ", " b"])),
    ("c", " ", (["c"], [" "])),
    ("c ", "</s>", (["c"], [" ", "</s>"])),
    ("c", "c</s>", (["c"], ["c", "</s>"])),
])
@pytest.mark.parametrize("adds", [(), ("<s>",), ("<s>", "</s>")], ids=["bare", "BOS", "BOS and EOS"])
def test_the_tokens_of_the_joint_text_are_split_where_the_continuation_begins(context, continuation, tokens, adds):
    before, after = tokens
    assert _split(context, continuation, adds=adds) == (["<s>", *before] if adds else before, after)


@pytest.mark.parametrize("context", ["", " ", "<s>"])
@pytest.mark.parametrize("adds", [(), ("<s>",)], ids=["bare", "BOS"])
def test_an_empty_context_is_exactly_one_bos(context, adds):
    before, after = _split(context, "a", adds=adds)
    assert before == ["<s>"]
    assert after == ([" a"] if context == " " else ["a"])


def test_without_bos_an_empty_context_is_eos_and_without_either_an_error():
    assert _split("", "a", adds=(), bos=None) == (["</s>"], ["a"])
    with pytest.raises(ParameterError, match="context"):
        _split("", "a", adds=(), bos=None, eos=None)


@pytest.mark.parametrize("context", ["c", "", "c "])
def test_an_empty_continuation_is_refused_unless_a_space_moves_into_it(context):
    if context == "c ":
        assert _split(context, "") == (["<s>", "c"], [" "])
        return
    with pytest.raises(ParameterError, match="continuation"):
        _split(context, "")


def test_characters_that_the_normalizer_changes_keep_their_side():
    normalizer = normalizers.Sequence([normalizers.Replace("x", "ab"), normalizers.Lowercase()])
    assert _split("cx", "A", normalizer=normalizer) == (["<s>", "c", "ab"], ["a"])
    assert _split("c", "xA", normalizer=normalizer) == (["<s>", "c"], ["ab", "a"])


def test_ids_are_joined_as_they_are():
    pair = encode_pair(None, [3, 1], np.array([4, 1]))
    assert (pair.token_ids, pair.start) == ((3, 1, 4, 1), 2)


@pytest.mark.parametrize(("context", "continuation", "name"), [
    ("a", [1], "continuation"), ([1], "a", "continuation"), ([1], [], "continuation"), ([], [1], "context"),
    ([1], [1.5], "continuation"), (None, [1], "context"), (5, [1], "context"), ([1], b"a", "continuation"),
    ({1, 2}, [1], "context"), (np.array(5), [1], "context"), ("a", "b", "context")])
def test_pairs_that_make_no_sense_are_refused_by_name(context, continuation, name):
    with pytest.raises(ParameterError) as caught:
        encode_pair(None, context, continuation)
    assert caught.value.parameter == name


TABLE = np.random.default_rng(0).normal(0, 3, (SIZE, SIZE)).astype(np.float32)


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    return llm_on(tmp_path_factory.mktemp("model") / "m", TABLE, *"abc ", special=["<s>"], bos="<s>", max_model_len=16)


A, B, C, SPACE, BOS = range(1, 6)


def _log_softmax(table):
    wide = table.astype(np.float64)
    return wide - np.log(np.exp(wide).sum(-1, keepdims=True))


def test_scores_are_the_log_softmax_of_the_continuations_tokens(llm):
    (found,) = score(llm, ["ab "], ["ca"])
    assert found.token_ids == (SPACE, C, A)
    wanted = [_log_softmax(TABLE)[before, token] for before, token in ((B, SPACE), (SPACE, C), (C, A))]
    assert found.token_logprobs == pytest.approx(wanted, abs=1e-5)  # float32 against float64, logits of size 10
    assert found.logprob == sum(found.token_logprobs)
    assert found.num_tokens == 3
    assert found.error is None


def test_the_first_token_of_a_text_has_a_score_given_bos(llm):
    (found,) = score(llm, [""], ["a"])
    assert found.token_logprobs == pytest.approx([_log_softmax(TABLE)[BOS, A]], abs=1e-5)


def test_a_continuation_is_greedy_if_greedy_sampling_gives_it_ties_included(tmp_path):
    table = path_table([BOS, A, B, C])
    table[C, [A, B]] = 5.0
    tied = llm_on(tmp_path / "m", table, *"abc ", special=["<s>"], bos="<s>")
    scores = score(tied, ["", "", "ab", "abc", "abc"], ["ab", "ac", "c", "a", "b"])
    assert [found.is_greedy for found in scores] == [True, False, True, True, False]


def test_pairs_come_back_in_order_whatever_contexts_they_share(llm):
    contexts = ["a", "b", "a", "ab", "b", "a"] * 5
    continuations = ["b", "c", "cc", "a", "cab", "b"] * 5
    alone = [score(llm, [context], [continuation])[0]
             for context, continuation in zip(contexts[:6], continuations[:6], strict=True)]
    assert score(llm, contexts, continuations) == alone * 5


# A block of 4 tokens takes 256 bytes: the smallest of these pools holds one context, and no two.
@pytest.mark.parametrize("sizes", [{}, {"max_num_seqs": 2}, {"kv_cache_bytes": 17 * 256}], ids=str)
def test_pairs_of_one_context_compute_it_once(tmp_path, sizes):
    llm = llm_on(tmp_path / "m", TABLE, *"abc ", special=["<s>"], bos="<s>", **sizes)
    contexts = [letter * 40 for letter in "abcab" for _ in range(6)]
    continuations = ["a", "b", "c", "ab", "bc", "ca"] * 5
    scores = score(llm, contexts, continuations)
    # Three contexts of 41 tokens, of which the other 27 pairs find all whole blocks of 4.
    assert llm.stats().num_computed_tokens < 3 * 45 + 27 * 5
    assert scores == [score(llm, [context], [continuation])[0]
                      for context, continuation in zip(contexts, continuations, strict=True)]


def test_a_pair_that_cannot_be_scored_fails_alone(llm):
    contexts = ["a", "a" * 20, "a", [A], "", [99], "b"]
    continuations = ["b", "b", "", "b", "b", [A], "a"]
    scores = score(llm, contexts, continuations)
    assert [found.error and found.error.parameter for found in scores] == [
        None, "prompt length", "continuation", "continuation", None, "prompt_token_ids", None]
    assert [found.logprob is None for found in scores] == [bool(found.error) for found in scores]
    assert scores[6] == score(llm, ["b"], ["a"])[0]


@pytest.mark.parametrize(("contexts", "continuations", "name"), [
    ("a", "b", "contexts"), (["a"], "b", "continuations"), (["a"], [], "continuations"), (5, ["a"], "contexts"),
    ({0: "a"}, ["b"], "contexts"), (["a"], {"b"}, "continuations")])
def test_lists_that_do_not_match_are_refused(llm, contexts, continuations, name):
    with pytest.raises(ParameterError) as caught:
        score(llm, contexts, continuations)
    assert caught.value.parameter == name


def test_ctrl_c_keeps_the_scores_that_are_there(llm, monkeypatch):
    wanted = score(llm, ["a"] * 3, ["b", "c", "a"])
    real, calls = llm.engine._runner.dispatch, []

    def dispatch(plan):
        calls.append(plan)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(plan)

    with monkeypatch.context() as patch:
        patch.setattr(llm.engine._runner, "dispatch", dispatch)
        first, *others = score(llm, ["a", "a", "a", "b"], ["b", "c", "a", "a"])
    assert first == wanted[0]
    # The first pairs of both contexts were one step, the others the next.
    assert [found.error and found.error.type for found in others] == ["KeyboardInterrupt", "KeyboardInterrupt", None]
    assert score(llm, ["a"] * 3, ["b", "c", "a"]) == wanted


def test_the_bar_counts_pairs(llm):
    bars = []

    def bar(**options):
        bars.append(tqdm(**{**options, "file": io.StringIO(), "disable": False}))
        return bars[-1]

    score(llm, ["a", "b", "a", ""], ["b", "c", "a", ""], use_tqdm=bar)
    assert [(each.n, each.total) for each in bars] == [(4, 4)]


def test_an_llm_scores(llm):
    contexts, continuations = ["a", "ab "], ["b", "c"]
    assert llm.score(contexts, continuations) == score(llm, contexts, continuations)


def test_no_pairs_have_no_scores(llm):
    assert score(llm, [], []) == []
