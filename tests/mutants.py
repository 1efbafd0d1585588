"""jaxllm broken on purpose, in one way at a time, and the tests that must notice.

As a pytest plugin, ``MUTANT=<name> python -m pytest -p mutants <tests>`` breaks it before anything is collected,
and prints which tests fail.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable

VARIABLE = "MUTANT"
MUTANTS = {}


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A way to break jaxllm, which takes effect when called, and the tests that it fails."""

    break_it: Callable[[], None]
    noticed_by: tuple[str, ...]


def mutant(*noticed_by):
    """Register a function that breaks something. noticed_by: tests, by their names under ``tests``."""

    def register(break_it):
        MUTANTS[break_it.__name__] = Mutant(break_it, tuple(f"tests/{test}" for test in noticed_by))
        return break_it

    return register


def pytest_configure(config):
    name = os.environ.get(VARIABLE)
    if name:
        MUTANTS[name].break_it()


def pytest_runtest_logreport(report):
    if report.failed:
        print(f"\nfails: {report.nodeid}")


@mutant("conformance/test_sampling.py::test_n_samples_of_a_seed_differ_and_repeat")
def samples_share_their_noise():
    from jaxllm.sampling.rows import RowTable

    set_slot = RowTable.set_slot

    def mutated(self, slot, params, seed, sample_index, *arguments, **options):
        set_slot(self, slot, params, seed, 0, *arguments, **options)

    RowTable.set_slot = mutated


@mutant("conformance/test_seeds.py::test_a_seeded_request_gets_its_tokens_whatever_its_batch_mates[last-seven]")
def noise_depends_on_the_slot():
    from jaxllm.sampling.rows import RowTable

    set_slot = RowTable.set_slot

    def mutated(self, slot, params, seed, *arguments, **options):
        set_slot(self, slot, params, seed ^ slot, *arguments, **options)

    RowTable.set_slot = mutated


@mutant("conformance/test_sampling.py::test_seeds_that_differ_in_any_bit_give_different_samples[seeds1]")
def seeds_lose_their_high_bits():
    from jaxllm.sampling.rows import RowTable

    set_slot = RowTable.set_slot

    def mutated(self, slot, params, seed, *arguments, **options):
        set_slot(self, slot, params, seed & 0xFFFFFFFF, *arguments, **options)

    RowTable.set_slot = mutated


@mutant(
    "conformance/test_stops.py::"
    "test_of_several_stop_strings_the_first_to_complete_counts_and_of_those_the_longest[stop0-DE]")
def stop_strings_count_at_the_end_of_a_token_only():
    from jaxllm.tokenization import StopChecker

    feed = StopChecker.feed

    def mutated(self, text, *, armed=True):
        before = self._held
        shown = feed(self, text, armed=armed)
        if self.stop_string is not None and not (before + text).endswith(self.stop_string):
            self.stop_string = None
            return before + text
        return shown

    StopChecker.feed = mutated


@mutant("conformance/test_stops.py::test_a_stop_string_before_min_tokens_is_passed_over_and_the_next_one_stops")
def min_tokens_does_not_hold_stop_strings_back():
    import jaxllm.engine.collector

    jaxllm.engine.collector.may_stop = lambda sequence: True


@mutant("conformance/test_stops.py::test_min_tokens_masks_every_end_of_sequence_id[0]")
def min_tokens_masks_no_end_of_sequence():
    import jaxllm.runner.runner

    slot_row = jaxllm.runner.runner.slot_row
    jaxllm.runner.runner.slot_row = lambda params, prompt, output, stop_ids, *rest, **options: slot_row(
        params, prompt, output, (), *rest, **options)


@mutant("conformance/test_stops.py::test_min_tokens_masks_every_end_of_sequence_id[1]")
def only_one_end_of_sequence_id_is_known():
    from jaxllm.engine.request import Request

    make = Request.__init__

    def mutated(self, *arguments, eos_token_ids=(), **options):
        make(self, *arguments, eos_token_ids=sorted(eos_token_ids)[:1], **options)

    Request.__init__ = mutated


@mutant(
    "conformance/test_sampling.py::test_the_newest_token_counts_for_the_frequency_penalty",
    "conformance/test_sampling.py::test_samples_of_a_prompt_count_their_own_tokens")
def penalties_miss_the_newest_token():
    import jaxllm.sampling.sampler

    jaxllm.sampling.sampler.count_tokens = lambda state, *arguments: state


@mutant("conformance/test_sampling.py::test_the_prompt_counts_for_the_repetition_penalty_alone")
def the_prompt_counts_for_every_penalty():
    import jaxllm.runner.runner

    slot_row = jaxllm.runner.runner.slot_row
    jaxllm.runner.runner.slot_row = lambda params, prompt, output, *rest, **options: slot_row(
        params, prompt, [*prompt, *output], *rest, **options)


@mutant("conformance/test_sampling.py::test_all_logits_equal_gives_the_lowest_id_that_is_allowed")
def ties_go_to_the_highest_id():
    import jaxllm.sampling.sampler

    sample_rows = jaxllm.sampling.sampler.sample_rows

    def mutated(logits, *arguments, raw=None, **options):
        sampled = sample_rows(logits[:, ::-1], *arguments, raw=None if raw is None else raw[:, ::-1], **options)
        return sampled._replace(token_ids=logits.shape[1] - 1 - sampled.token_ids)

    jaxllm.sampling.sampler.sample_rows = mutated


@mutant("conformance/test_prefixes.py::test_a_block_is_found_only_behind_the_same_prefix")
def block_hashes_are_not_chained():
    from jaxllm.engine.prefix_hash import HashChain

    extend = HashChain.extend

    def mutated(self, token_ids):
        for end in range((len(self.hashes) + 1) * self.block_size, len(token_ids) + 1, self.block_size):
            alone = HashChain.__new__(HashChain)
            alone.root, alone.block_size, alone.hashes = self.root, self.block_size, []
            extend(alone, token_ids[end - self.block_size:end])
            self.hashes += alone.hashes

    HashChain.extend = mutated


@mutant(
    "conformance/test_prefixes.py::test_no_two_identities_share_a_root",
    "conformance/test_prefixes.py::test_requests_share_prefixes_only_within_one_salt")
def prefixes_are_shared_across_salts():
    from jaxllm.engine.prefix_hash import PrefixIdentity

    root_hash = PrefixIdentity.root_hash
    PrefixIdentity.root_hash = lambda self: root_hash(dataclasses.replace(self, cache_salt=None))


@mutant("conformance/test_weights.py::test_after_the_weights_change_a_prompt_is_answered_as_by_a_fresh_engine")
def prefixes_outlive_the_weights():
    from jaxllm.engine.block_manager import BlockManager

    BlockManager.bump_weight_version = lambda self: None


@mutant("engine/test_block_manager.py::test_a_request_for_prompt_logprobs_reads_no_prefix_but_publishes_its_own")
def prompt_logprobs_read_the_prefix_cache():
    from jaxllm.engine.request import Sequence

    Sequence.num_reusable = property(lambda self: self.num_tokens - 1)


@mutant("conformance/test_prefixes.py::test_salts_change_nothing_but_the_sharing")
def blocks_are_free_while_others_own_them():
    from jaxllm.engine.block_pool import BlockPool

    release = BlockPool.release

    def mutated(self, block):
        self._references[block] = 1
        release(self, block)

    BlockPool.release = mutated


@mutant("engine/test_core.py::test_abort_returns_what_there_is_and_frees_it")
def blocks_are_lost_when_they_are_released():
    from jaxllm.engine.block_pool import BlockPool

    BlockPool.release = lambda self, block: None


@mutant("engine/test_block_manager.py::test_forks_share_all_blocks_and_the_first_to_write_into_a_partial_one_gets_a_copy")
def shared_blocks_are_written_to():
    from jaxllm.engine.block_manager import BlockManager

    grow = BlockManager.grow

    def mutated(self, sequence, end):
        references, self._pool.references = self._pool.references, lambda block: 1
        try:
            return grow(self, sequence, end)
        finally:
            self._pool.references = references

    BlockManager.grow = mutated


@mutant("conformance/test_text.py::test_bytes_that_no_later_one_can_complete_are_replaced_as_soon_as_that_is_certain")
def characters_in_pieces_are_shown_at_once():
    from jaxllm.tokenization.assembler import TextAssembler

    decode = TextAssembler._decode

    def mutated(self, data, *, final):
        return decode(self, data, final=True)

    TextAssembler._decode = mutated


@mutant("conformance/test_text.py::test_generate_has_exactly_one_bos_whether_the_text_spells_it_or_not[<s>ab]")
def a_second_bos_is_kept():
    from jaxllm.tokenization import Tokenizer

    Tokenizer._with_one_bos = lambda self, ids: ids


@mutant("conformance/test_text.py::test_prompt_logprobs_are_normalized_over_the_ids_that_exist")
def padded_ids_can_be_sampled():
    import jaxllm.runner.functions

    jaxllm.runner.functions.mask_padded_vocab = lambda logits, num_valid: logits


@mutant("conformance/test_logprob_modes.py::test_requests_of_both_modes_share_a_batch")
def processed_logprobs_are_raw():
    import jaxllm.sampling.sampler
    from pallas_kernels.sampling import log_normalizer

    kept_distribution = jaxllm.sampling.sampler.kept_distribution

    def mutated(logits, *arguments):
        return logits, log_normalizer(logits), kept_distribution(logits, *arguments)[2]

    jaxllm.sampling.sampler.kept_distribution = mutated


@mutant("test_scoring.py::test_scores_are_the_log_softmax_of_the_continuations_tokens")
def trailing_spaces_stay_in_the_context():
    import jaxllm.scoring

    encode_texts = jaxllm.scoring._encode_texts

    def mutated(tokenizer, context, continuation):
        ids, _ = encode_texts(tokenizer, context, continuation)
        return ids, len(tokenizer.encode(context))

    jaxllm.scoring._encode_texts = mutated


@mutant("conformance/test_speculation.py::"
        "test_drafts_that_turn_out_wrong_leave_no_trace[{'temperature': 1.0}-step by step]")
def drafts_stand_whatever_was_sampled():
    from jaxllm.engine import outcomes
    from jaxllm.speculative.verify import standing_tokens

    def mutated(plan, token_ids):
        return {sequence: len(plan.drafts[sequence]) + 1 for sequence in standing_tokens(plan, token_ids)}

    outcomes.standing_tokens = mutated
