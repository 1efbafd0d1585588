"""Buckets: few, at least 8, the last one large enough."""

from __future__ import annotations

import pytest

from jaxllm.runner.buckets import bucket_for, buckets


@pytest.mark.parametrize(("largest", "expected"), [
    (1, (8,)), (8, (8,)), (9, (8, 16)), (16, (8, 16)), (64, (8, 32, 64)), (100, (8, 32, 64, 104)),
    (512, (8, 32, 64, 128, 256, 512)),
])
def test_the_sizes(largest, expected):
    assert buckets(largest) == expected


def test_every_count_fits_its_bucket_and_no_smaller_one():
    sizes = buckets(300)
    for count in range(1, 301):
        size = bucket_for(sizes, count)
        assert size >= count
        assert all(smaller < count for smaller in sizes if smaller < size)
