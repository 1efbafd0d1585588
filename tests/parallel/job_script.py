"""One of the two processes of a test, with 2 devices: ``python job_script.py SCENARIO PROCESS FOLDER``.

The process that is to fail writes a line when it is about to; both write one when they have come to the end.
"""

import json
import os
import signal
import sys

import jax

from jaxllm.parallel import distributed


def say(**what):
    print(json.dumps(what), flush=True)


def refusal(call):
    try:
        call()
    except ValueError as error:
        return str(error)


def same_outputs(process):
    from parallel.job_requests import REQUESTS, make_engine, outputs

    engine = make_engine(FOLDER, 4)
    agreed = distributed.exchange("number", 10 * process)
    say(seed=engine.config.seed, blocks=engine.config.num_blocks, agreed=agreed, outputs=outputs(engine, REQUESTS))
    own = make_engine(FOLDER)  # on one of the process's own devices, alone
    say(alone=outputs(own, REQUESTS[:1 + process]))


def two_meshes(process):
    meshes(slice(None, 2))


def other_meshes(process):
    meshes(slice(2, None))


def meshes(which):
    from parallel.job_meshes import MESHES, found

    for mesh in list(MESHES)[which]:
        say(mesh=mesh, **found(FOLDER, mesh))


def dies_in_P2(process):
    dies_between_steps("P2", process)


def dies_in_D2(process):
    dies_between_steps("D2", process)


def dies_between_steps(mesh, process):
    from parallel.job_meshes import MANY, MESHES, SIZES

    from jaxllm import LLM

    engine = LLM(FOLDER, **SIZES | MESHES[mesh]()).engine
    for request in MANY:
        engine.add_request(*request)
    for step in range(1_000_000):
        if step == 12 and process == FAILS:
            say(about_to="die")
            os.kill(os.getpid(), signal.SIGKILL)
        engine.step()
        if not engine.has_unfinished():
            break


def unequal_parts(process):
    from parallel.job_meshes import SIZES

    from jaxllm import LLM

    mesh = jax.sharding.Mesh(jax.devices()[:3], ("pipe",))
    say(refused=refusal(lambda: LLM(FOLDER, **SIZES, mesh=mesh)))


def other_requests(process):
    from parallel.job_requests import REQUESTS, make_engine, outputs

    engine = make_engine(FOLDER, 4, seed=1)
    outputs(engine, REQUESTS[:1])
    say(about_to="differ")
    outputs(engine, REQUESTS[1 + process:2 + process])


def fewer_requests(process):
    from parallel.job_requests import REQUESTS, make_engine, outputs

    engine = make_engine(FOLDER, 4, seed=1)
    for request in REQUESTS[:2 - process]:
        outputs(engine, [request])


def other_sizes(process):
    from parallel.job_requests import make_engine

    make_engine(FOLDER, 4, max_num_seqs=4 + process)


def collectives(process, action):
    """Sums over all devices for ever, until process 1 does something else."""
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    mesh = jax.make_mesh((4,), ("all",))
    add = jax.jit(jax.shard_map(lambda x: jax.lax.psum(x, "all"), mesh=mesh, in_specs=PartitionSpec("all"),
                                out_specs=PartitionSpec()))
    ones = jax.make_array_from_callback(
        (4,), NamedSharding(mesh, PartitionSpec("all")), lambda index: np.ones(4, np.float32)[index])
    for step in range(1_000_000):
        if step == 20:
            say(about_to="go on", total=float(add(ones)[0]), pid=os.getpid())
            if process == FAILS:
                action()
        add(ones).block_until_ready()


def raise_an_error():
    raise ValueError("no such file: prompts.txt")


def dies(process):
    collectives(process, lambda: os.kill(os.getpid(), signal.SIGKILL))


def stops(process):
    collectives(process, lambda: os.kill(os.getpid(), signal.SIGSTOP))


def raises(process):
    collectives(process, raise_an_error)


def waits_for_a_lost_one(process):
    say(about_to="wait")
    if process == FAILS:
        os.kill(os.getpid(), signal.SIGKILL)
    distributed.exchange("something", 1)


if __name__ == "__main__":
    scenario, FAILS, FOLDER = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    if scenario == "starts_late":
        jax.devices()
    here = distributed.initialize(heartbeat_timeout=10 if scenario == "stops" else 30, initialization_timeout=60)
    assert distributed.initialize() is here
    if scenario != "starts_late":
        globals()[scenario](here.process_id)
    say(end=here.process_id)
