// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   From a table to a program: slots for every value in flight, signals for every message,
/// no wait too many.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/core/text.hpp>
#include <stagger/engine/messages.hpp>
#include <stagger/engine/play.hpp>
#include <stagger/engine/program.hpp>
#include <stagger/schedule/table.hpp>

namespace stagger {

/// How a table becomes a program.
struct LayOutOptions {
  bool recompute = false;  ///< keep only stage inputs from F on; run F again before B or I
  std::uint32_t spare_slots =
      1;  ///< slots of a message beyond what its consumer holds, so that a producer can run ahead
};

namespace detail {

/// One stage as the table uses it. Positions count the compute actions of its owner's row.
struct StageUse {
  int owner = -1;
  Positions forward;   // F
  Positions gradient;  // B or I
  Positions end;       // B or W; F where the table has no backward
};

class Layout {
 public:
  Layout(schedule::Table const& table, LayOutOptions const& options)
      : table_(table), options_(options) {
    read_table();
    spare_.assign(uses_.size() * 2, options.spare_slots);
  }

  Program make() {
    for (;;) {  // more room where the ranks would wait for each other; enough at last, since the
                // table itself does not
      Program program = attempt();
      auto const stall = play(program);
      if (stall.empty()) return program;
      for (Blocked const& blocked : stall) make_room(blocked.wait.signal);
    }
  }

 private:
  static constexpr std::size_t signals_per_edge = 4;
  enum EdgeSignal : std::size_t { forward_full, forward_free, backward_full, backward_free };

  [[nodiscard]] std::size_t stages() const { return uses_.size(); }
  [[nodiscard]] int owner(std::size_t stage) const { return uses_[stage].owner; }
  [[nodiscard]] bool crosses(std::size_t stage) const {
    return owner(stage) != owner(stage + 1);
  }  // edge stage -> stage + 1
  [[nodiscard]] static std::uint32_t signal(std::size_t edge, EdgeSignal which) {
    return static_cast<std::uint32_t>(edge * signals_per_edge + which);
  }

  void read_table() {
    auto const stage_count = static_cast<std::size_t>(table_.stages);
    auto const microbatches = static_cast<std::size_t>(table_.microbatches);
    if (table_.slices != 1)
      throw Error(
          Errc::bad_schedule,
          text("the table cuts microbatches into ", table_.slices,
               " slices; the engine runs whole microbatches: use a schedule without slices"));
    if (stage_count > 10000 || microbatches > 65535)
      throw Error(
          Errc::bad_schedule,
          text(stage_count, " stages and ", microbatches,
               " microbatches are more than a program can number; use at most 10000 and 65535"));
    uses_.assign(stage_count,
                 StageUse{-1, Positions(microbatches, nowhere), Positions(microbatches, nowhere),
                          Positions(microbatches, nowhere)});
    for (int r = 0; r < table_.ranks(); ++r) {
      std::uint32_t position = 0;
      for (auto const& action : table_.row(r)) {
        if (!schedule::is_compute(action.kind)) continue;
        auto& use = uses_[static_cast<std::size_t>(action.stage)];
        if (use.owner != -1 && use.owner != r)
          throw Error(Errc::bad_schedule,
                      text("stage ", action.stage, " is on ranks ", use.owner, " and ", r,
                           "; the engine needs one owner for each stage"));
        use.owner = r;
        auto const m = static_cast<std::size_t>(action.microbatch);
        if (action.kind == schedule::Kind::forward) use.forward[m] = position;
        if (schedule::gives_input_gradient(action.kind)) use.gradient[m] = position;
        if (schedule::ends_flight(action.kind)) use.end[m] = position;
        ++position;
      }
      row_length_.push_back(position);
    }
    training_ = !uses_.empty() && !uses_[0].end.empty() && uses_[0].end[0] != nowhere;
    if (!training_)
      for (auto& use : uses_) use.end = use.forward;
  }

  void assign_slots() {
    x_.assign(stages(), {});
    dy_.assign(stages(), {});
    kept_.assign(stages(), {});
    inner_.assign(stages(), {});
    for (std::size_t s = 0; s < stages(); ++s) {
      auto const& use = uses_[s];
      auto const length = row_length_[static_cast<std::size_t>(use.owner)];
      auto const pool = [&](Positions const& from) {
        return Messages(from, length, use.end, length, most_alive(from, use.end, length));
      };
      auto const edge = [&](std::size_t producer, Positions const& written, Positions const& read,
                            std::size_t spare) {
        if (owner(producer) == use.owner) return pool(written);
        auto const producer_length = row_length_[static_cast<std::size_t>(owner(producer))];
        return Messages(written, producer_length, use.end, length,
                        most_alive(read, use.end, length) + spare_[spare]);
      };
      if (s > 0) x_[s] = edge(s - 1, uses_[s - 1].forward, use.forward, 2 * s);
      kept_[s] = pool(options_.recompute && training_ ? use.gradient : use.forward);
      if (!training_) continue;
      inner_[s] = pool(use.gradient);
      dy_[s] = s + 1 == stages() ? pool(use.gradient)
                                 : edge(s + 1, uses_[s + 1].gradient, use.gradient, 2 * s + 1);
    }
  }

  // A rank knows how far another has come: as far as the giver of the last signal it waited for.
  // Signals are given in program order, so a wait for something older is no wait.
  void await(RankProgram& rank, Instruction& instruction, std::uint32_t which, std::uint32_t count,
             int giver, std::uint32_t position) {
    auto& known = known_[static_cast<std::size_t>(giver)];
    if (known > position) return;
    known = position + 1;
    rank.waits.push_back({which, count});
    ++instruction.waits;
    awaited_[which] = std::max(awaited_[which], count);
  }

  static void give(Instruction& instruction, std::uint32_t which) {
    instruction.give[instruction.gives++] = static_cast<std::uint16_t>(which);
  }

  void emit(RankProgram& rank, schedule::Action const& action) {
    using schedule::Kind;
    auto const s = static_cast<std::size_t>(action.stage);
    auto const m = static_cast<std::size_t>(action.microbatch);
    bool const last = s + 1 == stages();
    Instruction in;
    in.op = static_cast<Op>(action.kind);
    in.stage = static_cast<std::uint16_t>(s);
    in.microbatch = static_cast<std::uint32_t>(m);
    std::uint16_t const shift =
        options_.recompute && training_ ? 1 : 0;  // slot 0 is F's, which keeps nothing then
    bool const forward = action.kind == Kind::forward;
    in.kept = forward && shift != 0 ? std::uint16_t{0}
                                    : static_cast<std::uint16_t>(kept_[s].slot[m] + shift);
    if (s > 0) in.x = x_[s].slot[m];
    if (!last) in.y = x_[s + 1].slot[m];
    if (training_) {
      in.dy = dy_[s].slot[m];
      in.inner = inner_[s].slot[m];
      if (s > 0) in.dx = dy_[s - 1].slot[m];
    }
    bool const from_before = s > 0 && crosses(s - 1);
    bool const from_after = !last && crosses(s);
    if (forward) {
      if (from_before)
        await(rank, in, signal(s - 1, forward_full), x_[s].number[m] + 1, owner(s - 1),
              uses_[s - 1].forward[m]);
      if (from_after && x_[s + 1].room[m] != 0)
        await(rank, in, signal(s, forward_free), x_[s + 1].room[m], owner(s + 1),
              x_[s + 1].released[x_[s + 1].room[m] - 1]);
    }
    if (schedule::gives_input_gradient(action.kind)) {
      if (shift != 0) {
        Instruction again = in;
        again.op = Op::recompute;
        rank.code.push_back(again);
      }
      if (from_after)
        await(rank, in, signal(s, backward_full), dy_[s].number[m] + 1, owner(s + 1),
              uses_[s + 1].gradient[m]);
      if (from_before && dy_[s - 1].room[m] != 0)
        await(rank, in, signal(s - 1, backward_free), dy_[s - 1].room[m], owner(s - 1),
              dy_[s - 1].released[dy_[s - 1].room[m] - 1]);
    }
    // Room first: who then sees the message knows of the room as well.
    if (training_ ? schedule::ends_flight(action.kind) : forward) {
      if (from_before) give(in, signal(s - 1, forward_free));
      if (from_after && training_) give(in, signal(s, backward_free));
    }
    if (forward && from_after) give(in, signal(s, forward_full));
    if (schedule::gives_input_gradient(action.kind) && from_before)
      give(in, signal(s - 1, backward_full));
    rank.code.push_back(in);
  }

  Program attempt() {
    assign_slots();
    auto const ranks = static_cast<std::size_t>(table_.ranks());
    Program program;
    program.stages = table_.stages;
    program.microbatches = table_.microbatches;
    program.training = training_;
    std::size_t const edges = stages() - 1;
    std::size_t const done = edges * signals_per_edge;  // signal of rank 0; one for each rank
    awaited_.assign(done + ranks, 0);
    program.signals.resize(done + ranks);
    for (std::size_t e = 0; e < edges; ++e) {
      int const edge = static_cast<int>(e);
      program.signals[signal(e, forward_full)] = {owner(e), owner(e + 1), edge};
      program.signals[signal(e, forward_free)] = {owner(e + 1), owner(e)};
      program.signals[signal(e, backward_full)] = {owner(e + 1), owner(e), edge};
      program.signals[signal(e, backward_free)] = {owner(e), owner(e + 1)};
    }
    for (std::size_t r = 0; r < ranks; ++r) {
      program.signals[done + r] = {static_cast<int>(r), SignalEnds::everyone};
      known_.assign(ranks, 0);
      RankProgram rank;
      int in_flight = 0;
      int peak = 0;
      for (auto const& action : table_.row(static_cast<int>(r))) {
        if (!schedule::is_compute(action.kind)) continue;
        emit(rank, action);
        if (action.kind == schedule::Kind::forward) peak = std::max(peak, ++in_flight);
        if (schedule::ends_flight(action.kind) || !training_) --in_flight;
      }
      if (training_) {
        Instruction finish;
        finish.op = Op::finish;
        if (ranks > 1) give(finish, static_cast<std::uint32_t>(done + r));
        rank.code.push_back(finish);
        Instruction update;
        update.op = Op::update;
        for (std::size_t other = 0; other < ranks; ++other) {
          if (other == r) continue;
          rank.waits.push_back({static_cast<std::uint32_t>(done + other), 1});
          ++update.waits;
          awaited_[done + other] = 1;
        }
        rank.code.push_back(update);
      }
      program.ranks.push_back(std::move(rank));
      program.peak_in_flight.push_back(peak);
    }
    drop_unawaited(program);
    for (std::size_t s = 0; s < stages(); ++s) {
      program.owner.push_back(owner(s));
      std::uint32_t const scratch = options_.recompute && training_ ? 1 : 0;
      program.slots.push_back(
          {x_[s].slots, kept_[s].slots + scratch, dy_[s].slots, inner_[s].slots});
    }
    return program;
  }

  // A signal is given as often as somebody waits for it, and no more.
  void drop_unawaited(Program& program) const {
    std::vector<std::uint32_t> given(program.signals.size());
    for (auto& rank : program.ranks) {
      for (auto& in : rank.code) {
        std::uint8_t kept = 0;
        for (std::uint8_t g = 0; g < in.gives; ++g)
          if (++given[in.give[g]] <= awaited_[in.give[g]]) in.give[kept++] = in.give[g];
        in.gives = kept;
      }
    }
  }

  void make_room(std::uint32_t which) {
    std::size_t const edge = which / signals_per_edge;
    if (edge + 1 >= stages()) return;
    auto const kind = static_cast<EdgeSignal>(which % signals_per_edge);
    if (kind == forward_free) ++spare_[2 * (edge + 1)];
    if (kind == backward_free) ++spare_[2 * edge + 1];
  }

  schedule::Table const& table_;
  LayOutOptions options_;
  bool training_ = true;
  std::vector<StageUse> uses_;                   // [stages]
  std::vector<std::uint32_t> row_length_;        // [ranks] compute actions
  std::vector<std::uint32_t> spare_;             // [2 * stage: x, 2 * stage + 1: dy]
  std::vector<Messages> x_, dy_, kept_, inner_;  // [stages]
  std::vector<std::uint32_t> known_;    // [ranks] positions that the rank at hand knows to be done
  std::vector<std::uint32_t> awaited_;  // [signals] the highest count that anybody waits for
};

}  // namespace detail

/// Lowers a verified table to a program that cannot deadlock, and says what it needs: slots,
/// signals, waits.
///
/// @param table  legal by `schedule::verify`, one owner for each stage, no slices
/// @throws Error      bad_schedule for a table that the engine cannot run
/// @complexity        linear in the number of actions
[[nodiscard]] inline Program lay_out(schedule::Table const& table,
                                     LayOutOptions const& options = {}) {
  return detail::Layout(table, options).make();
}

}  // namespace stagger
