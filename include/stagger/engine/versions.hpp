// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Which version of its weights each microbatch of a stage sees, and where the version
/// lies.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/core/text.hpp>
#include <stagger/engine/messages.hpp>

namespace stagger {

/// An asynchronous staleness model, its type erased. None: every stage updates at the end.
struct StalenessModel {
  int microbatches = 0;  ///< of a minibatch; 0: none
  int (*version)(void const* policy, int minibatch, int available) = nullptr;
  void const* policy = nullptr;
  [[nodiscard]] explicit operator bool() const noexcept { return version != nullptr; }
};

namespace detail {

/// An update of one stage, after the action at `position`.
struct StageUpdate {
  std::uint32_t position = 0;
  std::uint16_t from = 0;  // slots of versions
  std::uint16_t to = 0;
};

/// The versions of one stage in a run without a flush. Version k contains k updates. It lives from
/// its making until its last reader has run and the next one is made; the first and the last lie in
/// slot 0.
struct Versions {
  std::uint32_t slots = 1;
  std::vector<std::uint16_t> seen;   ///< [microbatches] slot
  std::vector<StageUpdate> updates;  ///< [minibatches]

  Versions() = default;

  /// @param forward, end  [microbatches] positions of F and of B or W in the stage's row
  /// @throws Error  bad_schedule for an order of actions that the model cannot go with, naming
  /// stage and microbatch
  Versions(StalenessModel const& model, int stage, Positions const& forward, Positions const& end,
           std::size_t row_length) {
    auto const per_update = static_cast<std::size_t>(model.microbatches);
    std::size_t const minibatches = forward.size() / per_update;
    auto const ends = in_order(end, row_length);
    for (std::size_t k = 0; k < minibatches; ++k) {
      for (std::size_t i = k * per_update; i < (k + 1) * per_update; ++i)
        if (ends[i] / per_update != k)
          throw Error(
              Errc::bad_schedule,
              text("stage ", stage, " ends microbatch ", ends[i], " before those of minibatch ", k,
                   "; without a flush, minibatches must end one after the other"));
      updates.push_back({end[ends[(k + 1) * per_update - 1]], 0, 0});
    }
    std::vector<std::size_t> version(forward.size());
    std::vector<std::uint32_t> last_read(minibatches + 1);
    std::size_t available = 0;
    for (std::uint32_t const m : in_order(forward, row_length)) {
      while (available < minibatches && updates[available].position < forward[m]) ++available;
      int const wanted = model.version(model.policy, static_cast<int>(m / per_update),
                                       static_cast<int>(available));
      if (wanted < 0 || static_cast<std::size_t>(wanted) > available)
        throw Error(
            Errc::bad_schedule,
            text("the staleness model asks for version ", wanted, " of the weights of stage ",
                 stage, " at microbatch ", m, ", when ", available,
                 " updates have been made; let the schedule inject fewer microbatches at a time"));
      version[m] = static_cast<std::size_t>(wanted);
      last_read[version[m]] = std::max(last_read[version[m]], end[m]);
    }
    place(version, last_read);
  }

 private:
  void place(std::vector<std::size_t> const& version, std::vector<std::uint32_t> const& last_read) {
    std::size_t const minibatches = updates.size();
    std::vector<std::uint16_t> slot(minibatches + 1);
    std::vector<std::uint32_t> busy_until{0};  // [slots] position of the last reader
    for (std::size_t k = 0; k < minibatches; ++k) {
      std::uint32_t const now = updates[k].position;
      busy_until[slot[k]] = std::max(last_read[k], busy_until[slot[k]]);
      std::size_t next = slot[k];  // in place, where nobody reads the old version any more
      if (k + 1 == minibatches) {
        next = 0;  // all have ended
      } else if (last_read[k] > now) {
        next = 0;
        while (next < busy_until.size() && (next == slot[k] || busy_until[next] > now)) ++next;
        if (next == busy_until.size()) busy_until.push_back(0);
      }
      busy_until[next] = 0;
      slot[k + 1] = static_cast<std::uint16_t>(next);
      updates[k].from = slot[k];
      updates[k].to = slot[k + 1];
    }
    slots = static_cast<std::uint32_t>(busy_until.size());
    for (std::size_t const v : version) seen.push_back(slot[v]);
  }
};

}  // namespace detail
}  // namespace stagger
