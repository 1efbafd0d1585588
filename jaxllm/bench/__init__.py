"""How fast a model runs on a machine, and how fast it could at most."""

from jaxllm.bench.machine import MachineSpeed, measure_machine
from jaxllm.bench.roofline import Chunk, Cost, ModelCosts
from jaxllm.bench.speed import Speed, measure_speed

__all__ = ["Chunk", "Cost", "MachineSpeed", "ModelCosts", "Speed", "measure_machine", "measure_speed"]
