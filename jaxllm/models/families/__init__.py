"""One file per model family: the translation of its Hugging Face config and its weight names."""
