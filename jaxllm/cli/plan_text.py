"""A ``Plan`` and a ``MeshSearch`` as lines for people: titles, and labels with their values."""

from __future__ import annotations

from jaxllm.cli.options import format_bytes
from jaxllm.planning import Collective, CompiledStep, MeshSearch, Plan, StepTime

Sections = list[tuple[str, list[tuple[str, str]]]]


def plan_lines(plan: Plan) -> Sections:
    """All that a plan says."""
    sections = [
        (plan.model.name, _model(plan)),
        (f"{plan.mesh.gpus} x {plan.gpu.kind}, {plan.mesh.name}", _mesh(plan)),
        ("Memory of each GPU", _memory(plan)),
        ("KV cache", _cache(plan)),
        (f"Sent per decoding step of {plan.decode.tokens:,} tokens", _collectives(plan)),
        ("At most", [("decoding", _time(plan.decode)), ("prompts", _time(plan.prefill))]),
    ]
    if plan.compiled is not None:
        sections.insert(-1, ("Compiled, on each GPU of a stage", _compiled(plan.compiled)))
    if plan.notes:
        sections.append(("Notes", [("", note) for note in plan.notes]))
    how = ("counted from the model's description; --compile compiles the step" if plan.compiled is None else
           "the step was compiled for the mesh; times are counted")
    fits = "yes" if plan.problem is None else f"no: {plan.problem}"
    sections.append(("Verdict", [(plan.method, how), ("fits", fits)]))
    return sections


def search_lines(search: MeshSearch) -> Sections:
    """The meshes in a table, and the plan of the first one: the recommended, or the nearest where none fits."""
    rows = [(each.mesh.name, _row(each)) for each in search.plans]
    best = search.best
    return [(f"{best.model.name} on {best.mesh.gpus} x {best.gpu.kind}, {best.batch:,} sequences of "
             f"{best.context:,} tokens", rows),
            ("Recommended" if best.fits else "Nothing fits", [("", search.reason)]), *plan_lines(best)[1:]]


def _row(plan: Plan) -> str:
    if not plan.fits:
        return f"does not fit by {format_bytes(plan.memory.short_by)} per GPU"
    decode = plan.decode
    return (f"{decode.tokens_per_second:>9,.0f} tokens/s, {1000 * decode.seconds:7.2f} ms a token, bound by "
            f"{decode.limit:<16}  {format_bytes(plan.memory.weights):>9} of weights, "
            f"{plan.cache.tokens:>12,} tokens fit")


def _model(plan: Plan) -> list[tuple[str, str]]:
    model = plan.model
    active = "" if model.active_parameters > 0.9 * model.parameters else (
        f", {model.active_parameters:,} of them for each token")
    kept = model.dtype if model.quantization is None else f"{model.quantization}, computed with in {model.dtype}"
    return [("parameters", f"{model.parameters:,}{active}"), ("layers", str(model.layers)),
            ("weights", f"{format_bytes(model.weight_bytes)} in {kept}")]


def _mesh(plan: Plan) -> list[tuple[str, str]]:
    mesh, gpu = plan.mesh, plan.gpu
    lines = [("each", f"{format_bytes(gpu.memory_bytes)}, {gpu.bandwidth / 1e12:.3g} TB/s, "
                      f"{gpu.bfloat16_flops / 1e12:,.4g} TFLOP/s in bfloat16, {gpu.link.name} "
                      f"{gpu.link.bytes_per_second / 1e9:.4g} GB/s")]
    if mesh.nodes > 1:
        lines.append(("nodes", f"{mesh.nodes} of {mesh.gpus_per_node}, network "
                               f"{gpu.network.bytes_per_second / 1e9:.4g} GB/s for each GPU"))
    if mesh.pipe > 1:
        for number, stage in enumerate(plan.stages):
            lines.append((f"stage {number}", f"layers {stage.first_layer} to {stage.last_layer}, "
                          f"{format_bytes(stage.weight_bytes)} of weights, {stage.kv_bytes_per_token:,} B per token"))
    return lines


def _memory(plan: Plan) -> list[tuple[str, str]]:
    memory = plan.memory
    return [("weights", format_bytes(memory.weights)), ("KV cache", format_bytes(memory.kv_pool)),
            ("tables, sampler", format_bytes(memory.state)),
            ("temporary", f"{format_bytes(memory.temporary)} in a step of {plan.prefill.tokens:,} tokens"),
            ("in all", format_bytes(memory.total))]


def _cache(plan: Plan) -> list[tuple[str, str]]:
    cache = plan.cache
    kept = "" if cache.copies == 1 else f", each kept by {cache.copies} GPUs"
    return [("per token", f"{cache.bytes_per_token:,} B in {cache.dtype}, {cache.bytes_per_token_per_gpu:,} B on each "
                          f"GPU ({cache.kv_heads_per_gpu} KV heads{kept})"),
            ("tokens that fit", f"{cache.tokens:,}, in {cache.num_blocks:,} blocks of {cache.block_size} for each "
                                "replica"),
            (f"of {plan.context:,} tokens", f"{cache.sequences:,} sequences at once")]


def _collectives(plan: Plan) -> list[tuple[str, str]]:
    if not plan.collectives:
        return [("nothing", "")]
    return [(each.kind, _collective(each)) for each in plan.collectives]


def _collective(each: Collective) -> str:
    return (f"{each.count:>4} x {format_bytes(each.bytes_each):>10} after {each.where}, over {each.size} GPUs "
            f"({each.axis}, {each.link}): {format_bytes(each.sent_bytes)} from each, {1e6 * each.seconds:,.0f} µs")


def _compiled(step: CompiledStep) -> list[tuple[str, str]]:
    lines = []
    for stage, resident in enumerate(step.resident_bytes):
        sent = ", ".join(f"{count} x {kind} of {format_bytes(nbytes)}"
                         for (kind, nbytes), count in step.collectives(stage).items())
        lines.append((f"stage {stage}", f"{resident:,} B of weights and cache; sent in a decoding step: "
                      f"{sent or 'nothing'}"))
    return [*lines, ("temporary", f"{step.temporary_bytes:,} B at most, with greedy sampling")]


def _time(time: StepTime) -> str:
    return (f"{time.tokens_per_second:,.0f} tokens/s, {1000 * time.seconds:,.2f} ms a step: compute "
            f"{1000 * time.compute_seconds:,.2f}, memory {1000 * time.memory_seconds:,.2f}, links "
            f"{1000 * time.links_seconds:,.2f} ms in the slowest stage; bound by {time.limit}")
