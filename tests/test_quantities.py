"""Numbers of bytes and tokens as people write them."""

from __future__ import annotations

import numpy as np
import pytest

from jaxllm.errors import ParameterError
from jaxllm.quantities import parse_bytes, parse_count, parse_gibibytes

GIB = 2**30


@pytest.mark.parametrize(("text", "number"), [
    (5, 5), (np.int64(5), 5), ("5", 5), ("512M", 512 * 2**20), ("16g", 16 * GIB), ("16 GiB", 16 * GIB),
    ("1.5GB", 3 * GIB // 2), (" 2T ", 2 * 2**40), ("1k", 1024)])
def test_units_of_bytes_are_powers_of_1024(text, number):
    assert parse_bytes("x", text) == number


@pytest.mark.parametrize(("text", "number"), [
    (4, 4 * GIB), (0.5, GIB // 2), ("4", 4 * GIB), (".5", GIB // 2), ("512M", 512 * 2**20), ("16G", 16 * GIB), (0, 0)])
def test_a_number_without_a_unit_can_be_gibibytes(text, number):
    assert parse_gibibytes("x", text) == number


@pytest.mark.parametrize(("text", "number"), [
    (8192, 8192), ("8192", 8192), ("8k", 8000), ("8K", 8192), ("25.6k", 25600), ("1m", 10**6), ("1M", 2**20)])
def test_small_letters_count_tokens_in_thousands_and_capital_ones_in_1024s(text, number):
    assert parse_count("x", text) == number


@pytest.mark.parametrize("parse", [parse_bytes, parse_gibibytes, parse_count])
@pytest.mark.parametrize("value", [
    "", "x", "G", "5X", "-1", "1e3", "nan", "inf", -1, True, None, [1], {}, float("nan"), float("inf"), np.zeros(2),
    "9" * 400, "9" * 400 + "G", "1 2"])
def test_what_is_no_such_number_is_refused_by_name(parse, value):
    with pytest.raises(ParameterError) as caught:
        parse("some_name", value)
    assert caught.value.parameter == "some_name"


@pytest.mark.parametrize("parse", [parse_bytes, parse_count])
@pytest.mark.parametrize("value", [0, "0", 1.5, "1.5"])
def test_fractions_and_zero_are_no_sizes(parse, value):
    with pytest.raises(ParameterError):
        parse("x", value)
