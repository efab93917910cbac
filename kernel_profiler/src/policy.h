// The NUMA policy of a mapping, so that memory which replaces it gets the same.
#pragma once

#include "arm.h"
#include "system.h"

namespace sn {

// Hosts that know no policies, or forbid to ask, have none to lose.
inline MemoryPolicy policy_of(uint64_t address) {
  constexpr long kByAddress = 2;  // MPOL_F_ADDR
  MemoryPolicy found;
  if (sn_system(SYS_get_mempolicy, arg(&found.mode), arg(found.nodes), kPolicyNodes, arg(address), kByAddress, 0) != 0)
    return MemoryPolicy{};
  return found;
}

inline int policy_apply(const MemoryPolicy &policy, uint64_t address, uint64_t nbytes) {
  if (policy.mode == 0) return 0;
  return static_cast<int>(
      sn_system(SYS_mbind, arg(address), arg(nbytes), policy.mode, arg(policy.nodes), kPolicyNodes, 0));
}

}  // namespace sn
