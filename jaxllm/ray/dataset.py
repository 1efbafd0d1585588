"""``generate``: a data set with the model's outputs beside its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jaxllm.checks import check_bool, check_integer, check_real
from jaxllm.errors import ParameterError, UnsupportedModelError
from jaxllm.ray.rows import BatchGenerator, check_llm_arguments, check_sampling_params
from jaxllm.sampling_params import SamplingParams

if TYPE_CHECKING:
    import ray.data

ROWS_PER_BATCH = 1024
"""Each replica runs so many rows to their end before it takes more: several times ``max_num_seqs``."""


def generate(dataset: ray.data.Dataset, model: str, sampling_params: SamplingParams | None = None, *,
             replicas: int | tuple[int, int] = 1, num_gpus: float = 0, num_cpus: float | None = None,
             batch_size: int = ROWS_PER_BATCH, keep_order: bool = True, llm: dict[str, Any] | None = None,
             **ray_remote_args: Any) -> ray.data.Dataset:
    """Complete the rows of a data set; nothing runs before the result is read or written.

    Each row has one of the columns ``prompt`` (a text), ``prompt_token_ids``, ``messages`` (a conversation for the
    chat template), and maybe ``sampling_params``, a struct or a JSON text of fields that go over the call's; null is
    "not given". All columns are kept, and ``OUTPUT_COLUMNS`` are added. A row that fails has its ``error``; the others
    go on.

    model: what ``LLM`` takes: a hub id, a folder that every node has, or a packaged name.
    sampling_params: for all rows; ``None`` takes the model's own defaults.
    replicas: how many engines, or the fewest and the most.
    num_gpus, num_cpus: what each needs; of several GPUs a replica makes a mesh, as
        ``llm={"tensor_parallel_size": 4}`` says.
    batch_size: rows that a replica takes at a time. keep_order: give rows in their order, at the price that finished
        ones may wait for others.
    llm: other arguments of ``LLM``. ray_remote_args: of Ray's, such as ``runtime_env`` or ``max_restarts``.

    Raises ``UnsupportedModelError`` without Ray, and ``ParameterError`` for what is not allowed.
    """
    try:
        import ray.data
    except ImportError:
        raise UnsupportedModelError("jaxllm.ray needs Ray Data: pip install 'jaxllm[ray]'") from None
    if not isinstance(dataset, ray.data.Dataset):
        raise ParameterError("dataset", dataset, "a ray.data.Dataset")
    fewest, most = _replicas(replicas)
    check_integer("batch_size", batch_size, 1)
    check_real("num_gpus", num_gpus, 0, None)
    check_bool("keep_order", keep_order)
    arguments = {} if llm is None else dict(llm)
    check_llm_arguments(arguments)
    check_sampling_params(sampling_params)
    needed: dict[str, Any] = {**ray_remote_args, "num_gpus": num_gpus}
    if num_cpus is not None:
        needed["num_cpus"] = check_real("num_cpus", num_cpus, 0, None)
    result = dataset.map_batches(
        BatchGenerator,
        fn_constructor_kwargs={"model": model, "sampling_params": sampling_params, **arguments},
        compute=ray.data.ActorPoolStrategy(min_size=fewest, max_size=most),
        batch_format="pyarrow",
        batch_size=batch_size,
        udf_modifying_row_count=False,
        **needed,
    )
    if keep_order:
        result.context.execution_options.preserve_order = True
    return result


def _replicas(replicas: object) -> tuple[int, int]:
    if isinstance(replicas, tuple | list) and len(replicas) == 2:
        fewest = check_integer("replicas", replicas[0], 1)
        return fewest, check_integer("replicas", replicas[1], fewest)
    number = check_integer("replicas", replicas, 1)
    return number, number
