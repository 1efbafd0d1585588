// How a kernel becomes a target of XLA custom calls: it enters itself in a list that Python walks on loading.
#pragma once

#include "xla/ffi/api/ffi.h"

namespace pallas_kernels {

struct Target {
  const char* name;
  XLA_FFI_Handler* handler;
  const Target* next;

  Target(const char* name, XLA_FFI_Handler* handler);
};

}  // namespace pallas_kernels

// Defines the target NAME. Its name ends in a version, which changes with its operands, results, attributes or their
// meaning: a persistently cached executable must never call what it was not compiled for.
#define PALLAS_KERNELS_TARGET(NAME, IMPLEMENTATION, BINDING)                \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(NAME, IMPLEMENTATION, BINDING);             \
  static const ::pallas_kernels::Target NAME##_target(#NAME, NAME)
