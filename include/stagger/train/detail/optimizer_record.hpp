// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What a checkpoint says of the optimizer that wrote it.

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include <stagger/core/error.hpp>
#include <stagger/core/list.hpp>
#include <stagger/core/policy_numbers.hpp>

namespace stagger::detail {

/// An optimizer's name and its numbers: as it was given to Pipeline::with, and as they are now. A
/// number that has changed in the run, such as a rate by a schedule, says nothing of how the
/// program was written; all others do.
struct OptimizerRecord {
  std::string name{};                 // empty: unknown
  List<PolicyNumber> given{}, now{};  // none: unknown
  bool tells = true;                  // whether the program can know its numbers
  bool element_wise = true;           // of the program's; a file does not say it
};

/// @param given  as it was given to Pipeline::with
template <class Optimizer>
[[nodiscard]] OptimizerRecord optimizer_record(Optimizer const& given, Optimizer const& now) {
  return {policy_name<Optimizer>(), policy_numbers(given), policy_numbers(now),
          each_number(now, [](auto const*, std::size_t) {}), Optimizer::element_wise};
}

/// The optimizer of a checkpoint, or of a program, as it was given.
[[nodiscard]] [[gnu::cold]] inline std::string words_of(OptimizerRecord const& optimizer) {
  std::string words = optimizer.name + "(";
  for (PolicyNumber const& number : optimizer.given) append_number(words, number);
  return words + ")";
}

/// @throws Error  mismatch unless the optimizer that wrote the checkpoint is that of the program,
///                but for numbers that changed in its run
[[gnu::cold]] inline void require_optimizer(OptimizerRecord const& there,
                                            OptimizerRecord const& here, std::string const& path) {
  bool same = there.name == here.name && there.given.size() == here.given.size();
  for (std::size_t i = 0; same && i < there.given.size(); ++i) {
    bool const changed = there.given[i] != there.now[i];
    same =
        there.given[i].kind == here.given[i].kind && (changed || there.given[i] == here.given[i]);
  }
  if (same) return;
  raise(Errc::mismatch, "the checkpoint ", path, " was written with the optimizer ",
        words_of(there), ", and this pipeline has ", words_of(here),
        "; give it that one, or say what is meant: Restore::other_optimizer goes on with this "
        "one and that one's state, Restore::values takes the values alone, as for predictions");
}

}  // namespace stagger::detail
