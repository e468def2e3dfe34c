// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The refusal of a shape by a schedule policy: one sentence that names the value and the
///         nearest legal one.

#include <cstdint>
#include <type_traits>

#include <stagger/core/basic_algorithm.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/shape.hpp>

namespace stagger::schedule {

/// The count that a policy may refuse.
enum class Count : std::uint8_t { ranks, microbatches, chunks, group, slices, in_flight, warm_up };

/// The word for a count: singular for 1, else plural.
[[nodiscard]] constexpr char const* name(Count count, int value) noexcept {
  constexpr char const* words[][2] = {{"rank", "ranks"},
                                      {"microbatch", "microbatches"},
                                      {"chunk", "chunks"},
                                      {"microbatch in a group", "microbatches in a group"},
                                      {"slice", "slices"},
                                      {"microbatch in flight", "microbatches in flight"},
                                      {"unit of warm-up gap", "units of warm-up gap"}};
  return words[static_cast<int>(count)][value == 1 ? 0 : 1];
}

namespace detail {

/// Ends a constant evaluation so that the compiler prints the value, which is not an index of the
/// array.
constexpr int name_at_compile_time(int value) {
  int const nearest_legal_value[1] = {};
  return nearest_legal_value[value];
}

[[noreturn]] [[gnu::cold]] [[gnu::noinline]] inline void refuse(char const* policy, Count count,
                                                                int value, int nearest_legal,
                                                                char const* rule) {
  raise(Errc::bad_configuration, "schedule ", policy, " cannot have ", value, " ",
        name(count, value), ": ", rule, "; the nearest legal value is ", nearest_legal);
}

}  // namespace detail

/// Throws unless `holds`. In a constant expression the compiler prints this call and the nearest
/// legal value, which is why they are plain arguments and not part of a text.
/// @throws Error bad_configuration
constexpr void require(bool holds, char const* policy, Count count, int value, int nearest_legal,
                       char const* rule) {
  if (!holds) {
    if (std::is_constant_evaluated())
      static_cast<void>(detail::name_at_compile_time(nearest_legal));
    detail::refuse(policy, count, value, nearest_legal, rule);
  }
}

/// Refuses an odd number of ranks or microbatches of a bidirectional schedule.
/// @throws Error bad_configuration
constexpr void require_even(char const* policy, Count count, int value) {
  require(value % 2 == 0, policy, count, value, value + 1,
          count == Count::ranks ? "ranks pair up from both ends, so their number is even"
                                : "half of them enter at each end, so their number is even");
}

/// The requirements of a bidirectional mapping: one chunk, ranks and microbatches in even numbers.
/// @throws Error bad_configuration
constexpr void require_bidirectional(char const* policy, Shape shape) {
  require(shape.chunks == 1, policy, Count::chunks, shape.chunks, 1,
          "the bidirectional mapping has one");
  require_even(policy, Count::ranks, shape.ranks);
  require_even(policy, Count::microbatches, shape.microbatches);
}

/// The requirements on the number of slices of a microbatch, for a shape that is legal.
/// @throws Error bad_configuration
constexpr void require_slices(char const* policy, Shape shape, int slices) {
  require(slices >= 1, policy, Count::slices, slices, 1, "a microbatch has at least one slice");
  int const most = std::min(32767, ((1 << 29) - 1) / (shape.stages() * shape.microbatches));
  require(slices <= most, policy, Count::slices, slices, most,
          "slices are counted in 15 bits and actions in 31");
}

/// The requirements of every policy on a shape: at least one rank and one microbatch, the number of
/// chunks the policy makes, and less than 2^29 pairs of a stage and a microbatch, so that an `int`
/// counts the actions of each, and their time in units.
/// @throws Error bad_configuration
constexpr void require_counts(char const* policy, Shape shape, int chunks) {
  require(shape.ranks >= 1, policy, Count::ranks, shape.ranks, 1,
          "a pipeline has at least one rank");
  require(shape.microbatches >= 1, policy, Count::microbatches, shape.microbatches, 1,
          "an iteration has at least one microbatch");
  require(shape.chunks == chunks && chunks >= 1, policy, Count::chunks, shape.chunks,
          chunks >= 1 ? chunks : 1, "the policy says how many stages a rank runs");
  long long const limit = (1LL << 29) - 1;
  long long const stages = static_cast<long long>(shape.ranks) * shape.chunks;
  constexpr char const* rule = "a table has less than 2^29 pairs of a stage and a microbatch";
  require(shape.chunks <= limit, policy, Count::chunks, shape.chunks, static_cast<int>(limit),
          rule);
  require(stages <= limit, policy, Count::ranks, shape.ranks,
          static_cast<int>(limit / shape.chunks), rule);
  require(stages * shape.microbatches <= limit, policy, Count::microbatches, shape.microbatches,
          static_cast<int>(limit / stages), rule);
}

}  // namespace stagger::schedule
