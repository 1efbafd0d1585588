"""``kv_cache_dtypes.py``: both dtypes are timed on the same numbers, which they attend to alike."""

from __future__ import annotations

import json

import jax.numpy as jnp
import kv_cache_dtypes
import numpy as np
from support import TINY
from tiny_folder import write_tiny_folder

from jaxllm.kv_cache import kv_spec
from jaxllm.models.config import DecoderConfig

CASES = (kv_cache_dtypes.Case(3, 33), kv_cache_dtypes.Case(1, 40, 20))


def test_every_case_is_timed_for_both(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(kv_cache_dtypes, "CASES", CASES)
    report = tmp_path / "report.json"
    folder = write_tiny_folder(tmp_path / "tiny")
    kv_cache_dtypes.main(["--model", str(folder), "--calls", "2", "--context", "40", "--json", str(report)])
    found = json.loads(report.read_text())
    assert [(each["case"], each["dtype"]) for each in found["figures"]] == [
        (name, dtype) for name in (*(case.name for case in CASES), "a step after 40") for dtype in ("bfloat16", "int8")]
    assert all(0 < each["fastest"] <= each["median"] for each in found["figures"])
    assert found["bytes_per_token"]["int8"] < found["bytes_per_token"]["bfloat16"]
    assert "3 x 1 after 32" in capsys.readouterr().out


def test_both_attend_to_the_same_numbers():
    """Two layers after each other, of keys rounded to 1 / 127 of their largest numbers."""
    config = DecoderConfig(**TINY)
    plain, quantized = (
        np.asarray(kv_cache_dtypes.attention_of(config, kv_spec(config, jnp.dtype(dtype)), CASES[0])(), np.float32)
        for dtype in kv_cache_dtypes.DTYPES)
    np.testing.assert_allclose(quantized[:3], plain[:3], rtol=0, atol=0.03)
    assert np.abs(plain[:3]).max() > 0.3
