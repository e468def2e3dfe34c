// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The programs of a pipeline, each laid out and checked when it is first asked for.

#include <cstddef>
#include <cstdint>
#include <memory>

#include <stagger/core/basic_algorithm.hpp>
#include <stagger/core/combinations.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/list.hpp>
#include <stagger/core/shape.hpp>
#include <stagger/engine/options.hpp>
#include <stagger/engine/replica_run.hpp>
#include <stagger/engine/setup.hpp>
#include <stagger/program/check_program.hpp>
#include <stagger/program/lay_out.hpp>
#include <stagger/program/version_passes.hpp>
#include <stagger/schedule/table.hpp>

namespace stagger::detail {

/// The forwards of as many microbatches, out of a table of more of them, or of a table that runs
/// several times. They are taken evenly, so that those of a bidirectional table enter at both ends.
/// A stage of which a rank is left without any has a REDUCE_GRAD there: ranks hold the same stages,
/// and so the same parameters, whatever they run.
[[nodiscard]] [[gnu::cold]] inline schedule::Table forward_only(schedule::Table const& table,
                                                                int microbatches) {
  schedule::Table result;
  result.stages = table.stages;
  result.microbatches = microbatches;
  result.slices = table.slices;
  int const rounds = (microbatches - 1) / table.microbatches + 1;
  auto const all = std::int64_t{rounds} * table.microbatches;
  auto const before = [&](std::int64_t at) { return at * microbatches / all; };
  for (int r = 0; r < table.ranks(); ++r) {
    result.begin_row();
    List<schedule::Action> idle;  // of each stage, where it still has no forward
    for (std::int64_t first = 0; first < all; first += table.microbatches)
      for (auto const& action : table.row(r)) {
        if (action.kind != schedule::Kind::forward) continue;
        std::int64_t const at = first + action.microbatch;
        std::size_t i = 0;
        while (i < idle.size() && idle[i].stage != action.stage) ++i;
        if (i == idle.size()) idle.push_back({schedule::Kind::reduce_gradient, action.stage});
        if (before(at) == before(at + 1)) continue;
        idle[i].kind = schedule::Kind::forward;
        result.add({action.kind, action.stage, static_cast<int>(before(at)), action.slice});
      }
    for (auto const& stage : idle)
      if (stage.kind == schedule::Kind::reduce_gradient) result.add(stage);
  }
  return result;
}

/// Keeps only the most recently used programs, so that streams of many lengths do not fill the
/// memory.
class Programs {
 public:
  /// @param options    of the pipeline; must outlive this object
  /// @param positions  rows of the schedule's table
  /// @param shards     whether the optimizer state is sharded
  Programs(Setup const& setup, Options const& options, int positions, bool shards,
           bool sums_by_library)
      : schedule_(setup.schedule),
        options_(options),
        grouped_(setup.grouped),
        stages_(static_cast<int>(setup.cuts.size()) + 1),
        positions_(positions),
        own_weights_(setup.features.has(feature::own_weights)),
        apart_(setup.features.has(feature::library_sums)) {
    laying_.recompute = options.recompute;
    laying_.spare_slots = options.spare_slots;
    laying_.staleness = setup.staleness;
    laying_.replicas = &options.replicas;
    if (grouped_ != nullptr) {
      laying_.sections = &grouped_->sections();
      laying_.connect_sections = grouped_->connects();
      if (grouped_->updates != nullptr) laying_.staleness = *grouped_->updates;
    }
    for (auto const& part : setup.parts)
      if (part->passes() != nullptr) laying_.shared = part->passes();
    laying_.grouping = {
        .chain_squares = shards && options.clip_norm.has_value(),
        .by_library = sums_by_library,
        .push = setup.server.pushes_groups,
        .push_sums = setup.server.pushes_groups && !setup.features.has(feature::own_memory)};
  }
  [[gnu::cold]] [[gnu::noinline]] ~Programs() = default;

  /// @param groups  gradient groups that are added up while backward runs; null: none
  /// @throws Error  bad_configuration for no microbatches, or a number that the schedule does not
  ///                allow; bad_schedule for a table that cannot be run
  [[nodiscard]] [[gnu::cold]] std::shared_ptr<Program const> find(
      std::size_t microbatches, bool training, List<GradientGroup> const* groups) {
    require_microbatches(microbatches);
    auto const number = static_cast<int>(microbatches);
    for (Known& known : known_)
      if (known.asked != 0 && known.program->training == training &&
          known.program->microbatches == number &&
          (groups == nullptr || !training || known.program->groups == *groups)) {
        known.asked = ++asked_;
        return known.program;
      }
    return add(number, training, groups);
  }

  [[nodiscard]] schedule::Table table(int microbatches) const {
    return schedule_.table(
        schedule_.schedule,
        Shape{.ranks = positions_, .microbatches = microbatches, .chunks = schedule_.chunks});
  }

 private:
  struct Known {
    std::shared_ptr<Program const> program;
    std::uint64_t asked = 0;  // time of the last use; 0: the place is free
  };

  void require_microbatches(std::size_t count) const {
    if (count == 0)
      raise(Errc::bad_configuration,
            "a minibatch of 0 microbatches cannot be run; give at least 1");
    if (count % static_cast<unsigned>(schedule_.slices) != 0)
      raise(Errc::bad_configuration, counted(count, "input"), " cannot be microbatches of ",
            counted(schedule_.slices, "slice"), " each; give a multiple of ", schedule_.slices);
  }

  /// @throws Error  bad_schedule for a table of another shape
  [[nodiscard]] [[gnu::cold]] schedule::Table table_as_asked(int microbatches) const {
    schedule::Table made = table(microbatches);
    std::int64_t const units = std::int64_t{made.microbatches} * made.slices;
    if (made.stages != stages_ || made.ranks() != positions_ || made.slices < 1 ||
        units != std::int64_t{microbatches} * schedule_.slices)
      raise(Errc::bad_schedule, "the schedule made a table of ", counted(made.ranks(), "rank"),
            ", ", counted(made.stages, "stage"), " and ", counted(units, "microbatch"), " where ",
            positions_, ", ", stages_, " and ", microbatches * schedule_.slices,
            " were asked for; let table() make what its Shape says");
    return made;
  }

  /// The table of a forward-only pass, which needs none of the rules that a schedule has for the
  /// number of microbatches: if the schedule refuses this one, the forwards of a number near it.
  /// @throws Error  the schedule's own, if it refuses all of them
  [[nodiscard]] [[gnu::cold]] schedule::Table forwards(int microbatches) const {
    // A table may have slices of which the schedule says nothing: each counts as a microbatch then.
    auto const out_of = [&](int asked) {
      schedule::Table const made = table_as_asked(asked);
      std::int64_t const units = std::int64_t{microbatches} * schedule_.slices;
      if (units % made.slices != 0)
        raise(Errc::bad_configuration, counted(units, "microbatch"),
              " cannot be divided into slices of ", made.slices, " each; give a multiple of ",
              made.slices);
      return forward_only(made, static_cast<int>(units / made.slices));
    };
    try {
      return out_of(microbatches);
    } catch (Error const& refused) {
      if (refused.code() != Errc::bad_configuration) throw;
      // Rules go by the number of ranks, or by a number of the schedule's own.
      for (int by = 1; by <= 1024; by += by < positions_ ? 1 : 1 + by / 2)
        for (int const near : {microbatches + by, microbatches - by}) try {
            if (near > 0) return out_of(near);
          } catch (Error const& error) {
            if (error.code() != Errc::bad_configuration) throw;
          }
      throw;
    }
  }

  [[gnu::cold]] std::shared_ptr<Program const> add(int microbatches, bool training,
                                                   List<GradientGroup> const* groups) {
    int const whole = microbatches / schedule_.slices;
    schedule::Table made = training ? table_as_asked(whole) : forwards(whole);
    bool trains = false;
    for (auto const& action : made.actions) trains = trains || schedule::is_backward(action.kind);
    require_rule(Rule::untrained,
                 Features{}.with(feature::trains, training).with(feature::forward_only, !trains),
                 {}, Errc::bad_schedule);
    if (grouped_ != nullptr) made = grouped_->table(made, options_.replicas);
    laying_.groups = groups;
    auto const added = std::make_shared<Program const>(lay_out(made, laying_));
    if (own_weights_) require_kept_weights(*added);
    require_sound(*added, made, laying_);
    Known* oldest = known_;  // a free place, or the least recently used one
    for (Known& known : known_)
      if (known.asked < oldest->asked) oldest = &known;
    *oldest = {added, ++asked_};
    return added;
  }

  /// Refuses several owners of a stage, and in several processes a stage that has moved, where a layer
  /// keeps its own weights.
  [[gnu::cold]] void require_kept_weights(Program const& program) {
    List<int> holders;  // [stages]
    for (std::size_t c = 0; c < program.cells.size(); ++c) {
      Features const owners = feature::two_owners.with(feature::own_weights, true);
      if (!is_first_holder(program.cells, c)) require_rule(Rule::own_weights_owners, owners);
      holders.push_back(program.cells[c].rank);
    }
    for (std::size_t s = 0; apart_ && s < holders_.size() && s < holders.size(); ++s)
      if (holders_[s] != holders[s])
        require_rule(Rule::own_weights_moved, feature::own_weights | feature::moves_stages);
    holders_ = std::move(holders);
  }

  /// Two lengths, of whole minibatches and of the last one of a data set: each to evaluate, and to
  /// train in three groupings of gradients (each layer by itself, a whole stage at once, and the
  /// one that was decided), which come back whenever the decision is renewed.
  static constexpr std::size_t most_known = 8;

  ScheduleCall schedule_;
  Options const& options_;
  Grouped const* grouped_;
  int stages_;
  int positions_;
  bool own_weights_;   // a layer keeps its own weights
  bool apart_;         // in several processes
  List<int> holders_;  // [stages] rank that holds each, in the last program, with own weights
  LayOutOptions laying_;
  Known known_[most_known];
  std::uint64_t asked_ = 0;  // counts calls, as a clock for `asked`
};

}  // namespace stagger::detail
