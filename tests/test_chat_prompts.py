"""A conversation's template is a source, a file, or one of the model's."""

from __future__ import annotations

import pytest
import tokenizers

from jaxllm.chat_prompts import read_template
from jaxllm.errors import ParameterError
from jaxllm.tokenization import Tokenizer


def test_a_template_is_read_from_a_file_of_its_name(tmp_path):
    file = tmp_path / "template.jinja"
    file.write_text("{{ é }}", encoding="utf-8")
    assert read_template(file, None) == read_template(str(file), None) == "{{ é }}"
    assert read_template("{{ messages }}", None) == "{{ messages }}"
    assert read_template(None, None) is None
    for wrong in (tmp_path / "none.jinja", tmp_path, 5):
        with pytest.raises(ParameterError, match="chat_template"):
            read_template(wrong, None)


def test_a_template_that_is_no_source_has_to_be_a_file_or_one_of_the_models():
    templates = {"rag": "{{ b }}", "default": "{{ a }}"}
    tokenizer = Tokenizer(tokenizers.Tokenizer(tokenizers.models.BPE()), chat_template=templates)
    assert read_template("rag", tokenizer) == "rag"
    for wrong in ("/no/such/file.jinja", "rga", ""):
        with pytest.raises(ParameterError, match=r"a file that exists, or one of .* \['default', 'rag'\]"):
            read_template(wrong, tokenizer)
