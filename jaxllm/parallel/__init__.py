"""Models over several devices: meshes, and which part of a model each device has."""

from jaxllm.parallel.mesh import AXES, AXIS_RULES, as_device_mesh, device_mesh, tensor_mesh

__all__ = ["AXES", "AXIS_RULES", "as_device_mesh", "device_mesh", "tensor_mesh"]
