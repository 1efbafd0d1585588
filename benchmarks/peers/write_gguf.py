"""Write a quantized GGUF file's weights as plain float16 or bfloat16 ones, for peers that shall run the same model so.

The weights are rounded once from what the quantized ones stand for, as jaxllm and Hugging Face's loader do too; vectors
(norms, biases) stay float32, as llama.cpp's own conversion leaves them. All metadata but the file type is kept.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf

TYPES = {"f16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
         "bf16": (gguf.GGMLQuantizationType.BF16, gguf.LlamaFileType.MOSTLY_BF16)}
WRITTEN_ANYWAY = ("GGUF.version", "GGUF.tensor_count", "GGUF.kv_count", "general.architecture", "general.file_type",
                  "general.quantization_version")


def convert(source: Path, target: Path, kind: str) -> None:
    """Write ``target`` with matrices of ``kind``, "f16" or "bf16"."""
    reader = gguf.GGUFReader(source)
    tensor_type, file_type = TYPES[kind]
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    writer.add_file_type(file_type)
    for name, field in reader.fields.items():
        if name not in WRITTEN_ANYWAY:
            writer.add_key_value(name, field.contents(), field.types[0], _element_type(field))
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        if values.ndim == 1:
            writer.add_tensor(tensor.name, values)
        else:
            writer.add_tensor(tensor.name, gguf.quantize(values, tensor_type), raw_dtype=tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _element_type(field: Any) -> gguf.GGUFValueType | None:
    return field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None


def main(arguments: Sequence[str] | None = None) -> None:
    """Convert one file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="a .gguf file")
    parser.add_argument("target", type=Path, help="the .gguf file to write")
    parser.add_argument("--dtype", choices=sorted(TYPES), required=True, help="of the matrices")
    chosen = parser.parse_args(arguments)
    convert(chosen.source, chosen.target, chosen.dtype)


if __name__ == "__main__":
    main()
