"""The scripted model's logits are its table, bit for bit, whatever the table holds."""

from __future__ import annotations

import numpy as np
from scripted_model import SIZE, START, engine_on, llm_on, path_table, script, spelling
from support import greedy, run

from jaxllm.sampling_params import SamplingParams


def test_logits_are_the_table_bit_for_bit():
    table = np.random.default_rng(0).normal(0, 7, (SIZE, SIZE)).astype(np.float32)
    table[5, :4] = [0.1, -1e30, 1e-30, 3e37]
    runner = engine_on(table)._runner
    model, weights = runner.model, runner.weights
    hidden = model.modules.finish(weights.outer, model.modules.embed(weights.outer, np.arange(SIZE), np.arange(SIZE)))
    np.testing.assert_array_equal(np.asarray(model.logits(weights.head, hidden)), table)


def test_logits_depend_on_the_last_token_alone():
    table = np.random.default_rng(1).normal(0, 3, (SIZE, SIZE)).astype(np.float32)
    short, long = run(engine_on(table), [([9], greedy(8, logprobs=5)), ([*range(9, 40), 9], greedy(8, logprobs=5))])
    assert short.outputs[0].logprobs == long.outputs[0].logprobs
    line = short.outputs[0].logprobs[0]
    expected = table[9] - np.log(np.sum(np.exp(table[9].astype(np.float64))))
    for token, found in line.items():
        assert abs(found.logprob - expected[token]) < 1e-5  # float32 log-softmax against float64


def test_a_script_is_said_in_order():
    (output,) = run(engine_on(script(6), spelling("a", "b", "a", "c", b"\xc3", b"\xa9")), [([START], greedy(6))])
    assert output.outputs[0].token_ids == [1, 2, 3, 4, 5, 6]
    assert output.outputs[0].text == "abacé"


def test_the_folder_holds_the_same_model_and_tokenizer(tmp_path):
    llm = llm_on(tmp_path / "m", path_table([START, 1, 2, 5, 4]), "a", "b", special=["<s>", "</s>", "<end>"], bos="<s>",
                 end=["</s>", "<end>"])
    (output,) = llm.generate({"prompt_token_ids": [START]}, SamplingParams(temperature=0, max_tokens=9))
    assert output.outputs[0].token_ids == [1, 2, 5]
    assert output.outputs[0].text == "ab"
    assert llm.engine.eos_token_ids == {4, 5}
    assert llm.tokenizer.encode("ab") == [3, 1, 2]
