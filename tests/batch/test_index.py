"""Requests are found by their ids, or by their lines; the first line has an id."""

from __future__ import annotations

import json

import pytest

from jaxllm.batch import index
from jaxllm.batch.index import RequestIndex
from jaxllm.batch.lines import read_lines


def indexed(tmp_path, *ids):
    path = tmp_path / "requests.jsonl"
    path.write_text("".join(json.dumps({} if each is None else {"custom_id": each}) + "\n" for each in ids))
    return RequestIndex(path)


def test_each_request_is_found_by_its_id_or_line(tmp_path):
    ids = [f"id {number}" if number % 3 else None for number in range(1000)]
    found = indexed(tmp_path, *ids)
    assert len(found) == 1000
    assert [found.find(own, place + 1) for place, own in enumerate(ids)] == list(range(1000))
    assert [found.number(place) for place in (0, 999)] == [1, 1000]
    assert found.find("id 3", 4) is None  # a line that has no id is not found by one, nor the other way round
    assert found.find(None, 2) is None
    assert found.find(None, 1001) is None


def test_places_leave_blank_lines_out_and_line_numbers_do_not(tmp_path):
    path = tmp_path / "requests.jsonl"
    path.write_text('\n{"custom_id": "a"}\n\n{}\n')
    found = RequestIndex(path)
    assert [found.find("a", 2), found.find(None, 4)] == [0, 1]
    assert [found.number(0), found.number(1)] == [2, 4]
    assert [found.digest(place) for place in (0, 1)] == [line.digest for line in read_lines(path)]


def test_of_lines_with_one_id_the_first_has_it_and_the_others_go_by_their_lines(tmp_path):
    found = indexed(tmp_path, "b", "a", "a", "c", "a", "b")
    assert [found.find(own, 99) for own in "abc"] == [1, 0, 3]
    assert [found.find(None, number) for number in (1, 2, 3, 4, 5, 6)] == [None, None, 2, None, 4, 5]


def test_an_id_that_looks_like_a_line_number_is_not_one(tmp_path):
    found = indexed(tmp_path, "2", None, "line 1")
    assert [found.find("2", 1), found.find(None, 2), found.find(None, 1), found.find("line 1", 3)] == [0, 1, None, 2]


def test_hashes_that_agree_in_their_first_half_are_told_apart(tmp_path, monkeypatch):
    halves = index._halves
    monkeypatch.setattr(index, "_halves", lambda own, number: (halves(own, number)[0] % 3, halves(own, number)[1]))
    ids = [f"id {number}" for number in range(50)]
    found = indexed(tmp_path, *ids)
    assert [found.find(own, 0) for own in ids] == list(range(50))
    assert found.find("another", 0) is None


def test_an_empty_file_has_no_requests(tmp_path):
    assert len(indexed(tmp_path)) == 0
    assert indexed(tmp_path).find("a", 1) is None


def test_a_request_takes_few_bytes(tmp_path):
    found = indexed(tmp_path, *(f"{number}" * 50 for number in range(100)))
    arrays = [found._order, found._high, found._low]
    assert sum(each.nbytes for each in arrays) == 24 * 100
    assert {found._numbers.itemsize, found._digests.itemsize} == {8}


@pytest.mark.parametrize("missing", ["nothing/there", "."])
def test_a_file_that_cannot_be_read_is_an_error_of_the_system(tmp_path, missing):
    with pytest.raises(OSError, match="directory"):
        RequestIndex(tmp_path / missing)
