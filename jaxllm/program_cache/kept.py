"""What takes long to work out and is plain data: kept between runs beside the executables that depend on it."""

from __future__ import annotations

import logging
from collections.abc import Callable

from jaxllm.program_cache import fingerprint
from jaxllm.program_cache.folder import open_entries
from jaxllm.program_cache.trust import sources_are_trusted

logger = logging.getLogger("jaxllm")


def kept[T](
    title: str, description: tuple[object, ...], make: Callable[[], T], *, write: Callable[[T], bytes],
    read: Callable[[bytes], T],
) -> T:
    """What ``make()`` returns, from an earlier process where the sources are trusted (``trust_sources``).

    description: values whose text says everything that ``make`` depends on, beside the sources of jaxllm and the
    machine. read: undoes ``write``; whatever it raises, the value is made and written anew.
    """
    entries = open_entries()
    if entries is None or not sources_are_trusted():
        return make()
    name = fingerprint.of_description(title, *description)
    content = entries.get(name)
    if content is not None:
        try:
            return read(content)
        except Exception as error:
            logger.warning("%s cannot be read and is made again: %s", title, error)
            entries.delete(name)
    value = make()
    entries.put(name, write(value))
    return value
