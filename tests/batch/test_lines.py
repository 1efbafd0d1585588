"""Lines of a request file: numbers, digests, ids."""

from __future__ import annotations

import pytest

from jaxllm import ParameterError
from jaxllm.batch.lines import Line, decode, own_id, read_lines


def test_blank_lines_count_but_are_left_out_and_any_line_end_will_do(tmp_path):
    (tmp_path / "file").write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\n  \t\n {"b": "\xe2\x80\xa8\xc2\x85"}\nlast')
    assert list(read_lines(tmp_path / "file")) == [
        Line(1, b'{"a": 1}'), Line(4, b'{"b": "\xe2\x80\xa8\xc2\x85"}'), Line(5, b"last")]


def test_lines_are_read_as_they_are_asked_for(tmp_path):
    (tmp_path / "file").write_bytes(b"x" * 10_000 + b"\n" + b"y\n" * 1_000_000)
    lines = read_lines(tmp_path / "file")
    assert next(lines).number == 1
    with (tmp_path / "file").open("r+b") as file:
        file.truncate(100_000)
    assert sum(1 for _ in lines) < 50_000


def test_digests_tell_contents_apart_and_not_line_numbers():
    assert Line(1, b"a").digest == Line(2, b"a").digest != Line(1, b"b").digest
    assert len(Line(1, b"a").digest) == 16


@pytest.mark.parametrize(("content", "message"), [
    (b"", "Expecting value"), (b"[1]", "a JSON object"), (b"{", "Expecting property name"),
    (b'{"a": 1} {"a": 1}', "Extra data"), (b'{"a": Infinity}', "Infinity is not JSON"),
    (b'{"a": {"b": 1, "b": 1}}', "the key 'b' twice"), (b"\xff", "UTF-8 (invalid start byte at byte 0)"),
    (b'{"a": ' + b"9" * 5000 + b"}", "digits"), (b"[" * 100_000, "not nested as deeply"),
])
def test_what_is_no_json_object_is_refused(content, message):
    with pytest.raises(ParameterError) as raised:
        decode(content)
    assert raised.value.parameter == "line"
    assert message in str(raised.value)


@pytest.mark.parametrize(("content", "expected"), [
    (b'{"custom_id": "a"}', "a"), (b'{"custom_id": "\\ud800"}', "\ud800"), (b'{"custom_id": null}', None),
    (b"{}", None), (b'{"custom_id": ""}', None), (b'{"custom_id": 3}', None), (b"broken", None)])
def test_a_line_without_an_id_that_can_be_read_has_none(content, expected):
    assert own_id(Line(1, content)) == expected
