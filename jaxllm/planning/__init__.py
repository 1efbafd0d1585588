"""Planning a deployment before owning it: which mesh of GPUs a model fits, and what bounds its speed."""

from jaxllm.planning.api import plan, search_mesh
from jaxllm.planning.collectives import Collective
from jaxllm.planning.compiled import CompiledCollective, CompiledProgram, CompiledStep
from jaxllm.planning.gpus import GPU, GPUS, Link
from jaxllm.planning.mesh import MeshSizes
from jaxllm.planning.result import MeshSearch, Plan, PlannedCache, PlannedMemory, PlannedModel, PlannedStage
from jaxllm.planning.timing import StepTime

__all__ = ["GPU", "GPUS", "Collective", "CompiledCollective", "CompiledProgram", "CompiledStep", "Link", "MeshSearch",
           "MeshSizes", "Plan", "PlannedCache", "PlannedMemory", "PlannedModel", "PlannedStage", "StepTime", "plan",
           "search_mesh"]
