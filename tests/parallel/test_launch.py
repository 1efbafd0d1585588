"""What tells a process of the others: arguments, plain variables, torchrun, Open MPI, SLURM, Kubernetes."""

import os
import re
import socket

import pytest

from jaxllm.errors import ParameterError
from jaxllm.parallel import launch
from jaxllm.parallel.launch import find_launch

PLAIN = {"COORDINATOR_ADDRESS": "node1:1234", "NUM_PROCESSES": "4", "PROCESS_ID": "2"}
SLURM = {"SLURM_JOB_ID": "5000", "SLURM_STEP_NODELIST": "node[003-004],other7", "SLURM_STEP_NUM_TASKS": "6",
         "SLURM_NTASKS": "12", "SLURM_PROCID": "4", "SLURM_LOCALID": "1", "SLURM_NODEID": "2",
         "SLURM_STEP_TASKS_PER_NODE": "1,3,2"}
OPEN_MPI = {"OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911", "OMPI_COMM_WORLD_SIZE": "3",
            "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "3"}
TORCHRUN = {"MASTER_ADDR": "10.0.0.5", "MASTER_PORT": "29500", "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1",
            "LOCAL_WORLD_SIZE": "2"}
KUBERNETES = {"JOB_COMPLETION_INDEX": "2", "NUM_PROCESSES": "4", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}

OURS = r"SLURM_|OMPI_|(JAX_)?(COORDINATOR|NUM_PROCESSES|PROCESS_ID|LOCAL_)|MASTER_|RANK$|WORLD_|JOB_|TORCHEL|CUDA_"


@pytest.fixture
def environment(monkeypatch):
    """Sets these variables, and none besides that could tell of processes."""
    for name in list(os.environ):
        if re.match(OURS, name):
            monkeypatch.delenv(name)

    def set_variables(variables, **more):
        for name, value in {**variables, **more}.items():
            if value is None:
                monkeypatch.delenv(name, raising=False)
            else:
                monkeypatch.setenv(name, value)

    return set_variables


def found(**arguments):
    result = find_launch(**arguments)
    return result.coordinator_address, result.num_processes, result.process_id, result.local_device_ids


def test_a_process_that_nothing_tells_of_others_is_alone(environment):
    environment({})
    assert found() == (None, 1, 0, None)


def test_plain_variables_are_read_with_and_without_jax_in_front(environment):
    environment(PLAIN)
    assert found() == ("node1:1234", 4, 2, None)
    environment({f"JAX_{name}": value for name, value in PLAIN.items()}, **dict.fromkeys(PLAIN), LOCAL_DEVICE_IDS="3,1")
    assert found() == ("node1:1234", 4, 2, (3, 1))


def test_arguments_win_over_variables_and_variables_over_launchers(environment):
    environment({**PLAIN, **SLURM}, PROCESS_ID=None)
    assert found(num_processes=5) == ("node1:1234", 5, 4, None)
    assert found(coordinator_address="[::1]:9", num_processes=2, process_id=0, local_device_ids=1) == (
        "[::1]:9", 2, 0, (1,))
    assert found(num_processes=1) == (None, 1, 0, None)


@pytest.mark.parametrize("missing", PLAIN)
def test_a_plain_variable_that_is_missing_is_named_with_those_that_are_set(environment, missing):
    environment(PLAIN, **{missing: None})
    with pytest.raises(ParameterError, match=f"{missing}=None is not allowed: set it.*beside") as error:
        find_launch()
    others = [name for name in PLAIN if name != missing]
    assert all(f"{name}=" in str(error.value) for name in others)


@pytest.mark.parametrize(("name", "value", "allowed"), [
    ("NUM_PROCESSES", "four", "an integer >= 1"),
    ("NUM_PROCESSES", "0", "an integer >= 1"),
    ("PROCESS_ID", "-1", "an integer >= 0"),
    ("PROCESS_ID", "4", "less than NUM_PROCESSES, which is 4"),
    ("COORDINATOR_ADDRESS", "node1", "host:port"),
    ("COORDINATOR_ADDRESS", "node1:99999", "host:port"),
    ("COORDINATOR_ADDRESS", "::1:1234", "host:port"),
    ("LOCAL_DEVICE_IDS", "0,0", "each once"),
])
def test_a_wrong_value_is_named_with_what_is_allowed(environment, name, value, allowed):
    environment(PLAIN, **{name: value})
    with pytest.raises(ParameterError, match=f"{name}=.*{re.escape(value)}.*{re.escape(allowed)}"):
        find_launch()


def test_two_spellings_that_differ_are_refused(environment):
    environment(PLAIN, JAX_NUM_PROCESSES="5")
    with pytest.raises(ParameterError, match=r"NUM_PROCESSES='4'.*JAX_NUM_PROCESSES is '5'"):
        find_launch()


def test_slurm_gives_the_steps_tasks_and_its_first_node(environment):
    environment(SLURM)
    assert found() == (f"node003:{5000 % 4096 + 65535 - 4096 + 1}", 6, 4, None)


def test_processes_on_one_host_share_its_gpus_equally(environment):
    environment(SLURM, CUDA_VISIBLE_DEVICES="0,1,2,3")
    assert found()[3] == (2, 3)  # the second of two tasks on the third node
    environment({}, SLURM_STEP_TASKS_PER_NODE="2(x2),1")
    assert found()[3] is None  # one task has them all
    environment({}, SLURM_STEP_TASKS_PER_NODE="1,2,3")
    with pytest.raises(ParameterError, match=r"LOCAL_DEVICE_IDS=None.*4 GPUs.*3 processes"):
        find_launch()
    environment({}, CUDA_VISIBLE_DEVICES="5")
    assert found()[3] is None  # SLURM chose it for this task


def test_a_slurm_script_without_srun_is_refused_where_it_has_several_tasks(environment):
    environment(SLURM, SLURM_STEP_NODELIST=None)
    with pytest.raises(ParameterError, match=r"SLURM_NTASKS=12.*start it with srun"):
        find_launch()
    environment({}, SLURM_NTASKS="1")
    assert found() == (None, 1, 0, None)


@pytest.mark.parametrize("missing", ["SLURM_PROCID", "SLURM_LOCALID"])
def test_half_of_slurms_variables_are_refused(environment, missing):
    environment(SLURM, **{missing: None})
    with pytest.raises(ParameterError, match=f"{missing}=None.*SLURM_STEP_NODELIST="):
        find_launch()


def test_open_mpi_gives_ranks_and_the_host_of_its_launcher(environment):
    environment(OPEN_MPI, CUDA_VISIBLE_DEVICES="0,1,2")
    address, *rest = found()
    assert address.startswith("10.96.0.1:")
    assert rest == [3, 1, (1,)]


def test_open_mpi_5_without_mpi4py_asks_for_an_address_and_takes_one(environment):
    environment(OPEN_MPI, OMPI_MCA_orte_hnp_uri=None, OMPI_VERSION="5.0.3")
    with pytest.raises(ParameterError, match=r"COORDINATOR_ADDRESS=None.*mpirun -x COORDINATOR_ADDRESS.*mpi4py"):
        find_launch()
    environment({}, COORDINATOR_ADDRESS="node1:1234")
    assert found() == ("node1:1234", 3, 1, None)


def test_torchruns_own_port_is_left_to_it(environment):
    environment(TORCHRUN)
    assert found() == ("10.0.0.5:29500", 4, 3, None)
    environment({}, TORCHELASTIC_USE_AGENT_STORE="True", CUDA_VISIBLE_DEVICES="0,1,2,3")
    assert found() == ("10.0.0.5:29501", 4, 3, (2, 3))


@pytest.mark.parametrize("missing", ["MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"])
def test_half_of_torchruns_variables_are_refused(environment, missing):
    environment(TORCHRUN, **{missing: None})
    with pytest.raises(ParameterError, match=f"{missing}=None"):
        find_launch()


def test_a_pod_of_a_jobset_finds_pod_0_by_its_own_name(environment, monkeypatch):
    environment(KUBERNETES)
    monkeypatch.setattr(socket, "getfqdn", lambda: "llm-workers-0-2.llm.default.svc.cluster.local")
    assert found() == (f"llm-workers-0-0.llm.default.svc.cluster.local:{launch.KUBERNETES_PORT}", 4, 2, None)


def test_a_pod_without_a_subdomain_or_a_number_of_processes_is_told_what_to_set(environment, monkeypatch):
    environment(KUBERNETES)
    monkeypatch.setattr(socket, "getfqdn", lambda: "llm-workers-0-2")
    with pytest.raises(ParameterError, match=r"COORDINATOR_ADDRESS=None.*'llm-workers-0-2'.*subdomain"):
        find_launch()
    environment({}, NUM_PROCESSES=None)
    with pytest.raises(ParameterError, match=r"NUM_PROCESSES=None.*Kubernetes"):
        find_launch()
