"""A runner without a model: what each sequence says next is dictated by a script."""

from __future__ import annotations

import numpy as np
from support import EOS

from jaxllm.config import EngineConfig
from jaxllm.engine.core import Engine
from jaxllm.runner.runner import StepResult
from jaxllm.sampling import SampleOutput


class ScriptedRunner:
    """Answers each sampler with ``script(sequence)``: a token id, or an exception that the step then raises.

    The script is asked when the step is fetched, with the tokens of the steps before it appended.
    """

    def __init__(self, script):
        self.script = script
        self.intact = True
        self.resets = 0
        self.steps = 0

    def dispatch(self, plan):
        self.steps += 1
        return ScriptedStep(self, plan)

    def reset(self):
        self.resets += 1
        self.intact = True

    def compile_all(self):
        pass


class ScriptedStep:
    """A step of a ``ScriptedRunner`` that was dispatched."""

    def __init__(self, runner, plan):
        self.runner = runner
        self.plan = plan

    def fetch(self):
        tokens = []
        for sampler in self.plan.samplers:
            # A sequence that has ended since says anything.
            token = 0 if sampler.sequence.finished else self.runner.script(sampler.sequence)
            if isinstance(token, BaseException):
                raise token
            tokens.append(token)
        rows = len(tokens)
        return StepResult(SampleOutput(
            np.array(tokens, np.int32), np.full(rows, -0.5, np.float32), np.ones(rows, np.int32),
            np.zeros((rows, 20), np.int32), np.full((rows, 20), -1.0, np.float32)), [])


def scripted_engine(script, tokenizer=None, **sizes):
    """An engine on a script; ``script`` may be a list of ids that every sequence says in order."""
    if not callable(script):
        ids = list(script)
        script = lambda sequence: ids[sequence.num_output]  # noqa: E731
    config = EngineConfig(**{
        "max_num_seqs": 4, "max_num_batched_tokens": 64, "max_model_len": 64, "block_size": 4, "num_blocks": 65,
        "vocab_size": 300, **sizes})
    return Engine(ScriptedRunner(script), config, tokenizer, eos_token_ids=[EOS])
