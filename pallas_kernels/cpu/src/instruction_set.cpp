#include "instruction_set.h"

#include <atomic>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace pallas_kernels {
namespace {

#if defined(__x86_64__)

struct Registers {
  unsigned a = 0, b = 0, c = 0, d = 0;
};

Registers cpuid(unsigned leaf, unsigned subleaf) {
  Registers r;
  if (!__get_cpuid_count(leaf, subleaf, &r.a, &r.b, &r.c, &r.d)) return {};
  return r;
}

constexpr bool has(unsigned value, unsigned bit) { return (value >> bit) & 1; }

// The register states that the operating system saves (XCR0).
unsigned saved_states() {
  if (!has(cpuid(1, 0).c, 27)) return 0;
  unsigned low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

bool may_use_tiles() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM of Linux 5.16
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

InstructionSet detect() {
  constexpr unsigned kVectorStates = 0x06, kWideStates = 0xe6, kTileStates = 0x60000;
  const unsigned states = saved_states();
  const Registers features = cpuid(7, 0), more = cpuid(7, 1), first = cpuid(1, 0);
  const bool avx2 = has(features.b, 5) && has(features.b, 3) && has(features.b, 8) && has(first.c, 12) && has(first.c, 29);
  const bool avx512 = has(features.b, 16) && has(features.b, 17) && has(features.b, 30) && has(features.b, 31);
  const bool dots = has(features.c, 11) && has(more.a, 5);  // VNNI, BF16
  if ((states & kVectorStates) != kVectorStates || !avx2) return InstructionSet::kNone;
  if ((states & kWideStates) != kWideStates || !avx512) return InstructionSet::kAvx2;
  if (!dots) return InstructionSet::kAvx512f;
  const bool amx = has(features.d, 22) && has(features.d, 24) && has(features.d, 25) && has(features.c, 1) &&
                   (states & kTileStates) == kTileStates;
  return amx && may_use_tiles() ? InstructionSet::kAmxBf16 : InstructionSet::kAvx512Bf16;
}

#else

InstructionSet detect() { return InstructionSet::kNeon; }  // every Arm of 64 bits has it

#endif

std::atomic<int> chosen{-1};

}  // namespace

InstructionSet best_instruction_set() {
  static const InstructionSet best = detect();
  return best;
}

bool has_instruction_set(InstructionSet set) {
  const InstructionSet best = best_instruction_set();
  return set == best || (set != InstructionSet::kNone && best != InstructionSet::kNeon && set < best);
}

InstructionSet instruction_set() {
  const int set = chosen.load(std::memory_order_relaxed);
  return set < 0 ? best_instruction_set() : static_cast<InstructionSet>(set);
}

void use_instruction_set(InstructionSet set) { chosen.store(static_cast<int>(set), std::memory_order_relaxed); }

}  // namespace pallas_kernels
