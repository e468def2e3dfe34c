// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Run-time switch of the mutants that ./run mutate plants in a copy of the headers.
///
/// STAGGER_MUTANT names the mutant that is on (its number, in hexadecimal); without it none is.
/// STAGGER_MUTANTS_REACHED names a file to which each mutant that is reached appends its number.

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <type_traits>

namespace stagger_mutants {

inline bool on_at_first_use(unsigned id) noexcept {
  if (char const* const file = std::getenv("STAGGER_MUTANTS_REACHED")) {
    int const descriptor = ::open(file, O_WRONLY | O_APPEND | O_CLOEXEC);
    char line[16];
    int const length = std::snprintf(line, sizeof line, "%08x\n", id);
    if (descriptor >= 0) {
      [[maybe_unused]] auto const written =
          ::write(descriptor, line, static_cast<std::size_t>(length));
      ::close(descriptor);
    }
  }
  char const* const chosen = std::getenv("STAGGER_MUTANT");
  return chosen != nullptr && std::strtoul(chosen, nullptr, 16) == id;
}

template <unsigned Id> inline std::atomic<int> state{0};  // 0: not asked yet, 1: off, 2: on

template <unsigned Id> bool on() noexcept {
  int known =
      state<Id>.load(std::memory_order_relaxed);  // relaxed: must not order what it stands in
  if (known == 0) {
    known = on_at_first_use(Id) ? 2 : 1;
    state<Id>.store(known, std::memory_order_relaxed);
  }
  return known == 2;
}

}  // namespace stagger_mutants

/// Off in constant evaluation, so that proofs at compile time still hold.
template <unsigned Id> constexpr bool stagger_mutant() noexcept {
  if (std::is_constant_evaluated()) return false;
  return stagger_mutants::on<Id>();
}
