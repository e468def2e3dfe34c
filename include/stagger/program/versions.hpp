// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The version of the weights that each microbatch of a stage sees, and its slot.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include <stagger/core/basic_algorithm.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/core/list.hpp>
#include <stagger/model/exchange.hpp>
#include <stagger/program/detail/messages.hpp>
#include <stagger/program/program.hpp>

namespace stagger {

namespace detail {
struct LateCalls;
struct Versions;
struct StageRow;
struct VersionPasses;
}  // namespace detail

/// An asynchronous staleness model, its type erased; none: all stages update together, at the end.
struct StalenessModel {
  int microbatches = 0;  ///< of a minibatch; 0: none
  int (*version)(void const* policy, int minibatch, int available) = nullptr;
  void const* policy = nullptr;
  int push_minibatches = 0;  ///< minibatches in one push to a server; 0: there is no server
  int (*needs)(void const* policy, int minibatch) = nullptr;  ///< pushes of every worker
  staleness::Pushes pushes = staleness::Pushes::gradients;
  staleness::Adds adds = staleness::Adds::in_worker_order;
  /// `detail::fix_versions`, by address, so that a pipeline with a flush does not compile it.
  detail::Versions (*fix)(StalenessModel const&, detail::StageRow const&) = nullptr;
  /// `detail::version_passes`, for models that exchange parameters or have a `version`.
  detail::VersionPasses const* passes = nullptr;
  detail::LateCalls const* late = nullptr;  ///< null: no layer is late
  bool immediate = false;                   ///< late values are taken up before a forward
  int in_step_from = none;  ///< of a step: cells from this depth on update alone, the others at its
                            ///< end; none: of a run without a flush, where all update alone
  static constexpr int none = -1;
  [[nodiscard]] bool in_step() const noexcept { return in_step_from != none; }
  /// Whether cells of this depth update alone. @pre  *this
  [[nodiscard]] bool alone(int depth) const noexcept { return depth >= in_step_from; }
  [[nodiscard]] explicit operator bool() const noexcept { return version != nullptr; }
  [[nodiscard]] bool exchanges() const noexcept { return push_minibatches != 0; }
};

namespace detail {

/// The indices of one stage's actions for each microbatch.
struct StageRow {
  int stage = 0;
  RowIndices const& forward;  // [microbatches]
  RowIndices const& end;      // [microbatches] B or W
  std::size_t length = 0;     // of the owner's row
};

/// An update of one stage, after the action at `index`. If workers exchange changes: the change
/// of a minibatch, from the version that it saw.
struct StageUpdate {
  std::uint32_t index = 0;
  std::uint16_t from = 0;  // slots of versions, and of changes
  std::uint16_t to = 0;
};

/// How a version is made before the forward that is the first to see it, if workers exchange
/// changes.
struct StagePull {
  std::uint32_t microbatch = 0;  // that sees it first; after the last: for the version that stays
  std::uint32_t rounds = 0;      // pushes of every worker in the snapshot
  std::uint16_t waves = 0;       // own pushes after the snapshot
  bool snapshot = false;         // else: the version in `from` and the change in `to`, there
  std::uint16_t from = 0;        // slots
  std::uint16_t to = 0;
};

/// The versions of one stage in a run without a flush. Version k contains k updates. It lives from
/// its making until its last reader has run and the next one is made; the first and the last lie in
/// slot 0.
struct Versions {
  std::uint32_t slots = 1;
  List<std::uint16_t> seen;   ///< [microbatches] slot
  List<StageUpdate> updates;  ///< [minibatches]
  List<StagePull> pulls;      ///< in order
};

/// Whether a cell updates when it has gradients, without waiting for the others.
[[nodiscard]] inline bool updates_alone(FixedArray<Versions> const& versions, std::size_t c) {
  return versions.size() != 0 && !versions[c].updates.empty();
}

struct Dataflow;
class CheckState;
class VersionCheck;

/// Writes what stages that update alone, or exchange parameters with a server, do between the
/// actions of a table. Virtual, so that other pipelines do not compile it.
class UpdateWriter {
 public:
  virtual ~UpdateWriter() = default;
  /// Called before anything is written: adds signals of its own.
  virtual void name_signals() = 0;
  /// Before the forward of a unit on cell `c`.
  virtual void before_forward(RankProgram& rank, std::size_t c, std::uint32_t unit) = 0;
  /// After the action of cell `c` at `index`.
  virtual void after_action(RankProgram& rank, std::size_t c, std::uint32_t index) = 0;
  /// After all instructions of a rank.
  virtual void end_rank(RankProgram& rank, int self) = 0;
};

/// What `lay_out` and `require_sound` do for stages that update alone, or exchange parameters with
/// a server, by address, so that other pipelines do not compile it.
struct VersionPasses {
  /// @param sums   whether the gradients of several owners are added up while backward runs
  /// @return       [cells] without updates where a cell updates with the others; none where all do
  /// @throws Error bad_schedule for a table that does not fit the staleness model
  FixedArray<Versions> (*versions)(Dataflow const&, StalenessModel const&, bool sums);
  /// Also says in the program what it will write.
  std::unique_ptr<UpdateWriter> (*writer)(Program&, Dataflow const&, FixedArray<Versions> const&,
                                          StalenessModel const&);
  std::unique_ptr<VersionCheck> (*check)(CheckState const&, StalenessModel const&);
};
/// `program/version_passes.hpp` defines it. A template, so that only programs with such stages
/// compile it.
/// @tparam Model  StalenessModel
template <class Model> [[nodiscard]] VersionPasses const* version_passes() noexcept;
#ifdef STAGGER_SEPARATE_COMPILATION
extern template VersionPasses const* version_passes<StalenessModel>() noexcept;
#endif

/// Gives each version of one stage a slot.
/// @param version    [microbatches] that each sees
/// @param last_read  [minibatches + 1] index of each version's last reader
[[gnu::cold]] inline void place_versions(Versions& versions, List<std::size_t> const& version,
                                         List<std::uint32_t> const& last_read) {
  auto& updates = versions.updates;
  std::size_t const minibatches = updates.size();
  List<std::uint16_t> slot(minibatches + 1);
  List<std::uint32_t> busy_until{0};  // [slots] index of the last reader
  for (std::size_t k = 0; k < minibatches; ++k) {
    std::uint32_t const now = updates[k].index;
    busy_until[slot[k]] = std::max(last_read[k], busy_until[slot[k]]);
    std::size_t next = slot[k];  // in place, if the old version is not read any more
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
  versions.slots = static_cast<std::uint32_t>(busy_until.size());
  for (std::size_t const v : version) versions.seen.push_back(slot[v]);
}

/// @throws Error  bad_schedule for an order of actions that the model cannot go with, naming stage
///                and microbatch
[[gnu::cold]] inline Versions fix_versions(StalenessModel const& model, StageRow const& row) {
  Versions versions;
  auto& updates = versions.updates;
  auto const per_update = static_cast<std::size_t>(model.microbatches);
  std::size_t const minibatches = row.forward.size() / per_update;
  auto const ends = in_order(row.end, row.length);
  for (std::size_t k = 0; k < minibatches; ++k) {
    for (std::size_t i = k * per_update; i < (k + 1) * per_update; ++i)
      if (ends[i] / per_update != k)
        raise(Errc::bad_schedule, "stage ", row.stage, " ends microbatch ", ends[i],
              " before those of minibatch ", k,
              "; without a flush, minibatches must end one after the other");
    updates.push_back({row.end[ends[(k + 1) * per_update - 1]], 0, 0});
  }
  List<std::size_t> version(row.forward.size());
  List<std::uint32_t> last_read(minibatches + 1);
  std::size_t available = 0;
  for (std::uint32_t const m : in_order(row.forward, row.length)) {
    while (available < minibatches && updates[available].index < row.forward[m]) ++available;
    int const wanted =
        model.version(model.policy, static_cast<int>(m / per_update), static_cast<int>(available));
    if (wanted < 0 || std::cmp_greater(wanted, available))
      raise(
          Errc::bad_schedule, "the staleness model asks for version ", wanted,
          " of the weights of stage ", row.stage, " at microbatch ", m, ", when ", available,
          " updates have been made; use a schedule with fewer microbatches in flight, such as "
          "schedule::Fifo{1}, or a staleness model for as many, such as staleness::Delayed{} with "
          "schedule::Fifo");
    version[m] = static_cast<std::size_t>(wanted);
    last_read[version[m]] = std::max(last_read[version[m]], row.end[m]);
  }
  place_versions(versions, version, last_read);
  return versions;
}

}  // namespace detail
}  // namespace stagger
