"""From ids to text and back: characters in pieces, bytes, BOS, ids without a token."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_model import SIZE, START, engine_on, flat_table, llm_on, script, spelling
from support import run, tiny_engine
from tiny_folder import write_tiny_folder
from tokenization.toy_tokenizers import byte_level_tokenizer

from jaxllm import LLM, BeamSearchParams
from jaxllm.sampling_params import SamplingParams
from jaxllm.tokenization import IncrementalDetokenizer

PROMPT = {"prompt_token_ids": [START]}
EMOJI = "🙂".encode()
TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message['content'] }}{% endfor %}"
CALLS_BOS = [{"role": "user", "content": "ab"}]


def _bytes(data):
    return [bytes([byte]) for byte in data]


def _say(pieces, **options):
    (output,) = run(engine_on(script(len(pieces)), spelling(*pieces)), [
        ([START], SamplingParams(**{"temperature": 0.0, "max_tokens": len(pieces), **options}))])
    return output.outputs[0]


@pytest.mark.case(24)
@pytest.mark.parametrize("character", ["é", "語", "🙂", "👍"])
def test_a_stream_shows_no_replacement_before_a_character_is_complete(tmp_path, character):
    pieces = ["x", *_bytes(character.encode()), "y"]
    llm = llm_on(tmp_path / "m", script(len(pieces)), *pieces)
    params = SamplingParams(temperature=0, max_tokens=len(pieces))
    texts = [output.outputs[0].text for output in llm.stream(PROMPT, params)]
    assert texts == [*["x"] * len(character.encode()), "x" + character, f"x{character}y"]


@pytest.mark.case(24)
@pytest.mark.parametrize("given_bytes", [1, 2, 3])
def test_an_output_that_ends_within_a_character_has_the_text_of_its_ids(given_bytes):
    pieces = ["x", *_bytes(EMOJI)]
    sample = _say(pieces, max_tokens=1 + given_bytes)
    assert sample.text == spelling(*pieces).decode(sample.token_ids) == "x\ufffd"


@pytest.mark.case(24)
def test_bytes_that_no_later_one_can_complete_are_replaced_as_soon_as_that_is_certain(tmp_path):
    pieces = [b"\xf0", b"\x9f", "a", b"\x82", "b"]
    llm = llm_on(tmp_path / "m", script(5), *pieces)
    texts = [output.outputs[0].text for output in llm.stream(PROMPT, SamplingParams(temperature=0, max_tokens=5))]
    assert texts == ["", "", "\ufffda", "\ufffda\ufffd", "\ufffda\ufffdb"]


@pytest.mark.case(24)
def test_an_abort_within_a_character_completes_the_text():
    engine = engine_on(script(3), spelling("x", *_bytes(EMOJI[:2])))
    name = engine.add_request([START], SamplingParams(temperature=0.0, max_tokens=9))
    for _ in range(3):
        (output,) = engine.step()
    assert output.outputs[0].text == "x"
    assert engine.abort(name).outputs[0].text == "x\ufffd"


@pytest.mark.case(24)
def test_a_stop_string_is_found_in_the_replacement_that_ends_the_text():
    sample = _say(["x", b"\xf0"], stop="\ufffd")
    assert (sample.text, sample.stop_reason) == ("x", "\ufffd")


@pytest.mark.case(24)
@given(data=st.binary(max_size=24), cuts=st.lists(st.integers(0, 24), max_size=5))
def test_any_bytes_in_any_pieces_become_what_the_tokenizer_makes_of_them_at_once(data, cuts):
    tokenizer = byte_level_tokenizer(_bytes(range(256)))
    assert tokenizer.decode(list(data)) == data.decode("utf-8", "replace")
    detokenizer = IncrementalDetokenizer(tokenizer)
    ends = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    for start, end in itertools.pairwise(ends):
        detokenizer.append(data[start:end])
        assert data.decode("utf-8", "replace").startswith(detokenizer.text)
    detokenizer.finish()
    assert detokenizer.text == data.decode("utf-8", "replace")


@pytest.mark.case(25)
def test_every_byte_has_a_decoded_token_of_its_own():
    pieces = _bytes([*range(0x80, 0x80 + SIZE - 2)])
    sample = _say(pieces, logprobs=20, max_tokens=1)
    shown = [entry.decoded_token for entry in sample.logprobs[0].values()]
    assert len(set(shown)) == len(shown) == 20
    for text in shown:
        assert text
        assert "\ufffd" not in text


@pytest.mark.case(25)
def test_the_decoded_tokens_of_a_character_in_pieces_spell_its_bytes():
    pieces = ["x", *_bytes(EMOJI), " y", "<|special|>"]
    sample = _say(pieces, logprobs=0)
    shown = [line[token].decoded_token for token, line in zip(sample.token_ids, sample.logprobs, strict=True)]
    assert shown == ["x", "\\xf0", "\\x9f", "\\x99", "\\x82", " y", "<|special|>"]
    tokenizer = spelling(*pieces)
    assert b"".join(map(tokenizer.token_bytes, sample.token_ids)).decode() == "x🙂 y<|special|>"


@pytest.mark.case(25)
def test_prompt_logprobs_decode_bytes_the_same_way():
    tokenizer = spelling(*_bytes(EMOJI))
    (output,) = run(engine_on(flat_table(), tokenizer), [
        ([START, 1, 2], SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0))])
    assert [line and next(iter(line.values())).decoded_token for line in output.prompt_logprobs] == [
        None, "\\xf0", "\\x9f"]


@functools.cache
def _padded():
    """A random model with 199 ids, of which its tokenizer knows 41."""
    return tiny_engine(tokenizer=byte_level_tokenizer([bytes([byte]) for byte in range(40, 80)], special=["<s>"]))


@pytest.mark.case(22)
@pytest.mark.parametrize("options", [
    {}, {"top_k": 30}, {"top_p": 0.999}, {"min_p": 1e-9}, {"logprobs": 20}, {"presence_penalty": 2.0},
    {"min_tokens": 30, "stop_token_ids": [3]}], ids=str)
def test_ids_that_the_tokenizer_lacks_are_never_sampled(options):
    params = SamplingParams(temperature=1e6, max_tokens=60, n=8, seed=1, ignore_eos=True, **options)
    (output,) = run(_padded(), [([1], params)])
    sampled = {token for sample in output.outputs for token in sample.token_ids}
    assert max(sampled) < 41
    assert len(sampled) > 30
    for sample in output.outputs:
        for line in sample.logprobs or ():
            assert max(line) < 41
    again = [sample.token_ids for sample in output.outputs]
    assert not any(fed.error for fed in run(_padded(), [(ids, SamplingParams(max_tokens=1)) for ids in again]))


@pytest.mark.case(22)
def test_a_beam_search_never_finds_ids_that_the_tokenizer_lacks():
    engine = _padded()
    engine.add_request([1], BeamSearchParams(8, 6, ignore_eos=True))
    while engine.has_unfinished():
        outputs = engine.step()
    found = [token for hypothesis in outputs[-1].outputs for token in hypothesis.token_ids]
    assert len(found) == 8 * 6
    assert max(found) < 41


@pytest.mark.case(22)
def test_prompt_logprobs_are_normalized_over_the_ids_that_exist():
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    outputs = run(_padded(), [([1, token], params) for token in range(41)])
    total = sum(np.exp(output.prompt_logprobs[1][token].logprob) for token, output in enumerate(outputs))
    assert total == pytest.approx(1, abs=1e-5)  # the rounding of 41 float32 log-probabilities


@pytest.mark.case(22)
def test_ids_beyond_the_tokenizer_are_refused_as_prompts(tmp_path):
    llm = LLM(write_tiny_folder(tmp_path / "padded", vocab_size=300), dtype="float32", max_model_len=64)
    refused, taken = llm.generate([[259], [258]], SamplingParams(max_tokens=1), use_tqdm=False)
    assert refused.error.parameter == "prompt_token_ids"
    assert "259" in refused.error.message
    assert taken.error is None


def _llm_with_bos(path, **options):
    return llm_on(path, flat_table(), "a", "b", special=["<s>", "</s>"], bos="<s>", end=["</s>"], **options)


BOS = 3


@pytest.mark.case(23)
@pytest.mark.parametrize("template", [TEMPLATE, TEMPLATE.removeprefix("{{ bos_token }}")], ids=["writes", "omits"])
def test_chat_has_exactly_one_bos_whether_the_template_writes_it_or_not(tmp_path, template):
    llm = _llm_with_bos(tmp_path / "m", chat_template=template)
    (output,) = llm.chat(CALLS_BOS, SamplingParams(max_tokens=1), use_tqdm=False)
    assert output.prompt_token_ids == [BOS, 1, 2]
    text = llm.tokenizer.apply_chat_template(CALLS_BOS, tokenize=False)
    (through_text,) = llm.generate(text, SamplingParams(max_tokens=1), use_tqdm=False)
    assert through_text.prompt_token_ids == [BOS, 1, 2]
    assert llm.tokenizer.apply_chat_template(CALLS_BOS) == [BOS, 1, 2]


@pytest.mark.case(23)
@pytest.mark.parametrize("text", ["ab", "<s>ab"])
def test_generate_has_exactly_one_bos_whether_the_text_spells_it_or_not(tmp_path, text):
    llm = _llm_with_bos(tmp_path / "m")
    for prompt in (text, {"prompt": text}):
        assert llm.generate(prompt, SamplingParams(max_tokens=1))[0].prompt_token_ids == [BOS, 1, 2]
    assert llm.tokenizer.encode_batch([text, "b"]) == [[BOS, 1, 2], [BOS, 2]]


@pytest.mark.case(23)
def test_token_ids_are_taken_as_they_are(tmp_path):
    llm = _llm_with_bos(tmp_path / "m")
    for ids in ([1, 2], [BOS, BOS, 1]):
        assert llm.generate({"prompt_token_ids": ids}, SamplingParams(max_tokens=1))[0].prompt_token_ids == ids


@pytest.mark.case(23)
def test_a_tokenizer_that_adds_no_bos_gets_none(tmp_path):
    llm = llm_on(tmp_path / "m", flat_table(), "a", "b", special=["<s>"], chat_template=TEMPLATE)
    assert llm.generate("ab", SamplingParams(max_tokens=1))[0].prompt_token_ids == [1, 2]
    assert llm.generate("<s>ab", SamplingParams(max_tokens=1))[0].prompt_token_ids == [BOS, 1, 2]
