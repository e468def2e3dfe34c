// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The number of ranks that share each position of a schedule: data parallelism inside a
///         pipeline.

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <type_traits>

#include <stagger/core/list.hpp>

namespace stagger {

namespace detail {
class PolicyPart;
using MakePart = std::shared_ptr<PolicyPart const>();

/// Tag of the engine's part for replicas. It takes long to compile, so only programs with
/// replicas include its definition, <stagger/engine/replicas.hpp>.
struct WithReplicas {};
template <class Tag> struct ReplicaTable {
  static_assert(!std::is_same_v<Tag, WithReplicas>,
                "stagger: stages with replicas need one more header: include "
                "<stagger/engine/replicas.hpp>");
  static constexpr MakePart* make = nullptr;
};
}  // namespace detail

/// How many ranks share each position of the schedule, a row of its table: data parallelism inside
/// a stage. The replicas of a position run the same actions, each on its rows of every microbatch.
///
/// @code
///     #include <stagger/engine/replicas.hpp>
///     sg::Options{.replicas = {1, 2, 1}};                      // even shares
///     sg::Options{.replicas = {1, {15, 1}, 1}};                // 15 rows of 16 to the first
/// @endcode
class Replicas {
 public:
  /// The ranks of one position.
  struct Shares {
    Shares(int ranks) : count(ranks) {}  ///< ranks with even shares
    /// One rank for each share; rows are divided in proportion to these.
    Shares(std::initializer_list<int> shares) : count(static_cast<int>(shares.size())) {
      of.assign(shares.begin(), shares.size());
    }
    int count;
    List<int> of;  ///< empty: even shares
  };

  Replicas() = default;
  template <class Tag = detail::WithReplicas>
  Replicas(std::initializer_list<Shares> positions) : make_part_(detail::ReplicaTable<Tag>::make) {
    for (Shares const& shares : positions) append(shares);
  }
  /// [positions] The ranks of each position.
  template <class Tag = detail::WithReplicas>
  [[nodiscard]] static Replicas even(int const* counts, std::size_t positions) {
    Replicas replicas;
    replicas.make_part_ = detail::ReplicaTable<Tag>::make;
    for (std::size_t p = 0; p < positions; ++p) replicas.append(counts[p]);
    return replicas;
  }

  /// Rank `rank` stands for replica `replica` of position `position`, and has `own` of `total`
  /// shares of a microbatch, after the `before` shares of lower replicas.
  struct Part {
    int position = 0;
    int replica = 0;
    int replicas = 1;
    std::uint64_t before = 0;
    std::uint64_t own = 1;
    std::uint64_t total = 1;
  };

  [[nodiscard]] bool empty() const noexcept { return counts_.empty(); }
  /// Whether ranks share the rows of any microbatch.
  [[nodiscard]] bool share_rows() const noexcept { return parts_.size() > counts_.size(); }
  [[nodiscard]] std::size_t positions() const noexcept { return counts_.size(); }
  [[nodiscard]] List<int> const& counts() const noexcept { return counts_; }  ///< [positions]
  [[nodiscard]] List<Part> const& parts() const noexcept { return parts_; }   ///< [ranks]
  /// For engines: makes their part for replicas. @pre !empty()
  [[nodiscard]] std::shared_ptr<detail::PolicyPart const> part() const { return make_part_(); }

 private:
  void append(Shares const& shares) {
    Part part;
    part.position = static_cast<int>(counts_.size());
    part.replicas = shares.count;
    part.total = 0;
    auto const own = [&](int k) {
      return shares.of.empty() ? 1U
                               : static_cast<std::uint64_t>(shares.of[static_cast<unsigned>(k)]);
    };
    for (int k = 0; k < shares.count; ++k) part.total += own(k);
    for (int k = 0; k < shares.count; ++k) {
      part.replica = k;
      part.own = own(k);
      parts_.push_back(part);
      part.before += part.own;
    }
    counts_.push_back(shares.count);
  }

  List<int> counts_;
  List<Part> parts_;
  detail::MakePart* make_part_ = nullptr;
};

}  // namespace stagger
