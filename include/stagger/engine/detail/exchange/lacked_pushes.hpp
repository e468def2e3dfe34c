// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The pushes that the weights of a worker's minibatches contain and lack.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include <stagger/core/error.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/parameters/version_tag.hpp>

namespace stagger::detail {

/// Records which pushes are contained in weights of a layer that a worker has taken.
/// @param rounds     that it had asked for
/// @param contained  [workers] what those of other layers contain, at least
/// @throws Error     bad_data for fewer pushes of a worker
inline void note_contained(std::size_t layer, VersionTag const& tag, std::uint32_t rounds,
                           std::uint32_t* contained) {
  for (std::size_t n = 0; n < tag.pushes.size(); ++n) {
    if (tag.pushes[n] < rounds)
      raise(Errc::bad_data, "worker ", tag.worker, " received weights of layer ", layer, " with ",
            tag.pushes[n], " of the ", rounds, " pushes of worker ", n,
            " that it had asked for; let the server and all workers run one version of one "
            "program");
    contained[n] = std::min(contained[n], tag.pushes[n]);
  }
}

/// The largest number of pushes of one worker that the weights of a minibatch or microbatch lacked.
struct MostLacked {
  int pushes = 0;
  int worker = -1;  ///< whose pushes; -1 if none are lacking
};

class LackedPushes {
 public:
  LackedPushes() = default;
  /// @param workers  of the server
  /// @param own      the worker, whose own pushes never count as lacking
  [[gnu::cold]] LackedPushes(std::size_t workers, int own)
      : workers_(static_cast<int>(workers)), own_(own), counts_((workers + 1) * lengths) {}

  /// [k] minibatches whose weights lacked k pushes of a worker; the last: k or more.
  /// @param worker  empty: any, of which they lacked most
  /// @throws Error  bad_configuration for a worker that the server has not
  [[nodiscard]] std::span<std::uint64_t const> of(std::optional<int> worker) const {
    if (worker && (*worker < 0 || *worker >= workers_))
      raise(Errc::bad_configuration, "the parameter server has no worker ", *worker, "; it has ",
            counted(workers_, "worker"), ", counted from 0");
    return {counts_.data() + worker.value_or(workers_) * lengths, std::size_t{lengths}};
  }
  /// Counts one minibatch.
  /// @param made    pushes that the worker had made before it
  /// @param stages  calls its argument with [workers] the pushes that the weights of each stage
  ///                contained
  template <class Stages> void count(std::uint32_t made, Stages stages) {
    int most_of_any = 0;
    for (int n = 0; n < workers_; ++n) {
      int most = 0;
      stages([&](std::uint32_t const* contained) {
        most = std::max(most, lacked(made, contained, n));
      });
      add(n, most);
      most_of_any = std::max(most_of_any, most);
    }
    add(workers_, most_of_any);
  }
  /// What weights lacked most, of the first worker if there are several.
  [[nodiscard]] MostLacked most(std::uint32_t made, std::uint32_t const* contained) const noexcept {
    MostLacked most;
    for (int n = 0; n < workers_; ++n)
      if (int const pushes = lacked(made, contained, n); pushes > most.pushes) most = {pushes, n};
    return most;
  }

 private:
  static constexpr int lengths = 64;

  [[nodiscard]] int lacked(std::uint32_t made, std::uint32_t const* contained,
                           int n) const noexcept {
    return n == own_ ? 0 : static_cast<int>(made - std::min(made, contained[n]));
  }
  void add(int row, int pushes) noexcept {
    ++counts_[row * lengths + std::min(pushes, lengths - 1)];
  }

  int workers_ = 0;
  int own_ = 0;
  FixedArray<std::uint64_t> counts_;  // [workers + 1][lengths] of each worker, and of any
};

}  // namespace stagger::detail
