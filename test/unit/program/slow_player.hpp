// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A program's meaning, from the words of program.hpp alone, and a player that holds every
///         access of every value against every other one. It knows nothing of how programs are made
///         or checked, and takes its time.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include <stagger/program/detail/lay_out_options.hpp>
#include <stagger/schedule/table.hpp>

namespace slow_player {

using stagger::Instruction;
using stagger::LayOutOptions;
using stagger::Op;
using stagger::Program;
using stagger::SignalEnds;
using stagger::schedule::Table;

enum class Space { x, kept, dy, inner, y, dx, target, weights, gradient, sum, ends };

struct Access {
  Space space;
  std::size_t place;  // a cell; a rank, of targets and of what ends a step
  std::size_t slot;
  bool writes;
  std::string value;  // what must be read, or is written; "+..." is added to what is there, "="
                      // ends that sum, "#n" asks for one of n different terms; "*" reads anything,
                      // "@n" appends what is there to what slot n holds
};

inline std::string named(char const* what, std::size_t stage, std::uint32_t microbatch) {
  return what + std::to_string(stage) + "," + std::to_string(microbatch);
}

class Player {
 public:
  Player(Program const& program, LayOutOptions const& options)
      : program_(program), options_(options) {
    for (auto const& rank : program.ranks)
      for (auto const& in : rank.code) again_ = again_ || in.op == Op::recompute;
  }

  /// Runs the ranks in a random order that their waits allow. Two accesses of one slot, one of them
  /// writing, must be ordered by program order, gives and waits alone; then all interleavings read
  /// what this one reads. @return the first thing wrong, or ""
  std::string refute(std::mt19937& random) {
    using Clock = std::vector<std::size_t>;  // [ranks] instructions known to be done
    struct Touch {
      std::size_t rank;
      std::size_t instruction;
      bool writes;
    };
    struct Slot {
      std::string value;
      std::vector<Touch> touches;
    };
    auto const ranks = program_.ranks.size();
    std::vector<Clock> clock(ranks, Clock(ranks));
    std::vector<std::vector<Clock>> gives(program_.signals.size());  // clock of each give
    std::vector<std::size_t> at(ranks), wait(ranks);
    std::map<std::tuple<Space, std::size_t, std::size_t>, Slot> memory;
    made_.assign(program_.cells.size(), 0);
    wanted_.clear();
    wrong_.clear();
    servers_.assign(program_.cells.size(), Server{});
    for (std::size_t c = 0; c < program_.cells.size(); ++c) {
      memory[{Space::weights, c, 0}].value = streams_changes() ? "w" : "0";
      note_asks(c);
    }
    for (;;) {
      std::vector<std::size_t> able;
      for (std::size_t r = 0; r < ranks; ++r) {
        auto const& rank = program_.ranks[r];
        if (at[r] == rank.code.size()) continue;
        bool ready = true;
        for (std::size_t w = wait[r]; w < wait[r] + rank.code[at[r]].waits; ++w) {
          if (w == rank.waits.size()) return "a wait that does not exist";
          auto const& which = rank.waits[w];
          ready = ready && (outside(which.signal) ? server_of(which.signal).told()
                                                  : gives[which.signal].size()) >= which.count;
        }
        if (ready) able.push_back(r);
      }
      if (able.empty()) break;
      auto const r = able[random() % able.size()];
      auto const& rank = program_.ranks[r];
      auto const& in = rank.code[at[r]];
      for (std::size_t w = wait[r]; w < wait[r] + in.waits; ++w) {
        auto const& which = rank.waits[w];
        auto const ends = program_.signals[which.signal];
        if (ends.receiver != SignalEnds::everyone && ends.receiver != static_cast<int>(r))
          return "a rank waits for another's signal";
        if (which.count == 0) return "a wait that always holds";
        if (outside(which.signal)) {
          auto& heard = server_of(which.signal).heard;
          heard = std::max<std::size_t>(heard, which.count);
          continue;
        }
        auto const& known = gives[which.signal][which.count - 1];
        for (std::size_t o = 0; o < ranks; ++o) clock[r][o] = std::max(clock[r][o], known[o]);
      }
      wait[r] += in.waits;
      auto const touched = accesses(r, in);
      if (!wrong_.empty()) return wrong_;
      for (auto const& a : touched) {
        if (a.slot >= slots_of(a)) return "a slot beyond the last one";
        auto& slot = memory[{a.space, a.place, a.slot}];
        for (auto const& t : slot.touches)
          if (t.rank != r && (t.writes || a.writes) && clock[r][t.rank] <= t.instruction)
            return "a race for " + a.value + " between rank " + std::to_string(r) +
                   " instruction " + std::to_string(at[r]) + " and rank " + std::to_string(t.rank) +
                   " instruction " + std::to_string(t.instruction);
        slot.touches.push_back({r, at[r], a.writes});
        if (a.value == "*") continue;
        if (a.writes && a.value.front() == '@')
          slot.value = memory[{a.space, a.place, std::stoul(a.value.substr(1))}].value + slot.value;
        else if (a.writes && a.value.front() == '+')
          slot.value += a.value;
        else if (a.writes)
          slot.value = a.value == "=" ? "" : a.value;
        else if (a.value.front() == '#' ? count(slot.value) != a.value : slot.value != a.value)
          return "read " + slot.value + " instead of " + a.value;
      }
      ++at[r];
      clock[r][r] = at[r];
      for (std::size_t g = 0; g < in.signal_count; ++g) {
        if (program_.signals[in.signal[g]].sender != static_cast<int>(r))
          return "a rank gives another's signal";
        gives[in.signal[g]].push_back(clock[r]);
      }
    }
    for (std::size_t r = 0; r < ranks; ++r)
      if (at[r] != program_.ranks[r].code.size()) return "a deadlock at rank " + std::to_string(r);
    std::vector<std::size_t> awaited(program_.signals.size());
    for (auto const& rank : program_.ranks)
      for (auto const& w : rank.waits)
        awaited[w.signal] = std::max<std::size_t>(awaited[w.signal], w.count);
    for (std::size_t s = 0; s < awaited.size(); ++s)
      if (!outside(s) && gives[s].size() != awaited[s])
        return "a signal is given " + std::to_string(gives[s].size()) + " times and awaited " +
               std::to_string(awaited[s]) + " times";
    for (auto const& [where, slot] : memory)
      if (std::get<0>(where) == Space::weights && std::get<2>(where) == 0 && alone() &&
          slot.value != (streams_changes() ? "w everything" : std::to_string(program_.updates)))
        return "weights end as version " + slot.value;
    if (exchanging())
      for (Server const& server : servers_)
        if (server.pushes != server.all || (program_.flushes && server.pulls != 1))
          return std::to_string(server.pushes) + " pushes";
    return "";
  }

  /// Whether the program's compute instructions are the table's rows.
  [[nodiscard]] bool same_actions(Table const& table) const {
    for (std::size_t r = 0; r < static_cast<std::size_t>(program_.computing); ++r) {
      std::vector<stagger::schedule::Action> ran;
      Instruction const* part = nullptr;
      for (auto const& in : program_.ranks[r].code) {
        if (in.op == Op::recompute) continue;
        if (!computes(in.op) && !computes_part(in.op)) continue;
        if (part != nullptr) {
          if (in.op != part->op || in.cell != part->cell || in.microbatch != part->microbatch)
            return false;
        } else {
          auto action = action_of(in);
          action.slice = static_cast<std::int16_t>(action.microbatch % table.slices);
          action.microbatch /= table.slices;
          ran.push_back(action);
        }
        part = computes_part(in.op) && program_.groups[in.group].lowest != 0 ? &in : nullptr;
      }
      std::vector<stagger::schedule::Action> row;
      for (auto action : table.row(options_.row_of(static_cast<int>(r)))) {
        action.overlaps_next = false;
        if (is_compute(action.kind)) row.push_back(action);
      }
      if (ran != row) return false;
    }
    return true;
  }

  /// Whether F is run again right before each backward that needs it, if it is at all.
  [[nodiscard]] bool runs_again_in_time() const {
    for (auto const& rank : program_.ranks)
      for (std::size_t i = 0; i < rank.code.size(); ++i) {
        auto const& in = rank.code[i];
        if (!again_ || (in.op != Op::backward && in.op != Op::backward_input)) continue;
        if (i == 0) return false;
        auto const& again = rank.code[i - 1];
        if (again.op != Op::recompute || again.stage != in.stage ||
            again.microbatch != in.microbatch || again.kept != in.kept)
          return false;
      }
    return true;
  }

 private:
  /// A parameter server as one cell sees it. The other workers are as fast as can be: a round is there
  /// as soon as the cell itself has pushed so often. A cell asks for one snapshot at a time, and for
  /// the next one when it has taken the one before.
  struct Server {
    std::vector<std::size_t> asks;  // rounds of each snapshot that is waited for, rising
    std::size_t asked = 1;
    std::size_t pushes = 0, pulls = 0;
    std::size_t heard = 0;  // what the cell has waited for
    std::size_t taken = 0;  // rounds of the last snapshot
    std::size_t all = 0;    // pushes of a stream; with them come those of the others' streams
    bool in_step = false;
    [[nodiscard]] std::size_t told() const {
      std::size_t most = 0;
      for (std::size_t a = 0; a < std::min(asked, asks.size()); ++a)
        if ((!in_step && asks[a] <= pushes) || pushes == all) most = asks[a];
      return most;
    }
  };

  [[nodiscard]] bool alone() const { return program_.training && !program_.flushes; }
  [[nodiscard]] bool exchanging() const {
    return program_.training && options_.staleness.push_minibatches != 0;
  }
  [[nodiscard]] bool streams_changes() const { return exchanging() && alone(); }
  [[nodiscard]] std::size_t per_push() const {
    return static_cast<std::size_t>(options_.staleness.push_minibatches);
  }
  [[nodiscard]] std::size_t all_pushes(std::size_t cell) const {
    auto const minibatches = static_cast<std::size_t>(program_.microbatches);
    if (pushes_groups(cell)) return groups_of(stage_of(cell)).size();
    return alone() ? (minibatches + per_push() - 1) / per_push() : 1;
  }
  [[nodiscard]] std::size_t stage_of(std::size_t cell) const {
    return static_cast<std::size_t>(program_.cells[cell].stage);
  }
  /// Whether a cell pushes each gradient group by itself.
  [[nodiscard]] bool pushes_groups(std::size_t cell) const {
    return options_.grouping.push && options_.groups != nullptr &&
           holders_of(stage_of(cell)).size() == 1;
  }
  [[nodiscard]] bool outside(std::size_t signal) const {
    return program_.signals[signal].sender == SignalEnds::outside;
  }
  [[nodiscard]] Server& server_of(std::size_t signal) {
    std::size_t c = 0;
    while (program_.outside_signal(c) != signal) ++c;
    return servers_[c];
  }
  void note_asks(std::size_t c) {
    Server& server = servers_[c];
    if (!exchanging()) return;
    server.all = all_pushes(c);
    server.in_step = program_.flushes;
    if (program_.flushes) {
      server.asks = {1};
      return;
    }
    for (auto const& rank : program_.ranks)
      for (auto const& in : rank.code) {
        if (in.op != Op::pull || in.cell != c || !in.snapshot()) continue;
        if (in.last_pull())
          server.asks.push_back(server.all + 1);
        else if (in.rounds() > (server.asks.empty() ? 0 : server.asks.back()))
          server.asks.push_back(in.rounds());
      }
  }

  /// Weights: rounds of everybody, then own pushes, then own changes, one by one.
  [[nodiscard]] static std::string weights(std::size_t rounds, std::size_t pushes,
                                           std::size_t changes, std::size_t until) {
    std::string list = "w";
    for (std::size_t i = 0; i < rounds; ++i) list += " round" + std::to_string(i);
    for (std::size_t i = rounds; i < pushes; ++i) list += " push" + std::to_string(i);
    for (std::size_t i = changes; i < until; ++i) list += " change" + std::to_string(i);
    return list;
  }
  /// What a minibatch is to see, by the staleness model.
  [[nodiscard]] std::string seen_by(std::size_t c, std::uint32_t m) const {
    auto const& model = options_.staleness;
    std::size_t rounds = 0;  // never fewer than a minibatch before
    for (std::uint32_t b = 0; b <= m; ++b)
      rounds = std::max(rounds, static_cast<std::size_t>(
                                    std::max(0, model.needs(model.policy, static_cast<int>(b)))));
    auto const own =
        static_cast<std::size_t>(model.version(model.policy, static_cast<int>(m), made_[c]));
    return weights(rounds, own / per_push(), own / per_push() * per_push(), own);
  }

  /// What a cell tells a server and takes from it.
  void exchange(std::size_t r, Instruction const& in, std::vector<Access>& list) {
    std::size_t const c = in.cell;
    if (!exchanging()) {
      wrong_ = "an exchange without a server";
      return;
    }
    Server& server = servers_[c];
    if (program_.flushes && in.op == Op::push && pushes_groups(c)) {
      auto const groups = groups_of(in.stage);
      if (server.pushes == groups.size() || in.group != groups[server.pushes])
        wrong_ = "a push of another group";
      list.push_back({Space::gradient, c, in.group, false, taken(c)});
      ++server.pushes;
      return;
    }
    if (program_.flushes) {
      list.push_back({Space::ends, r, 2, false, "updated"});
      if (in.op == Op::push ? server.pushes++ != 0 : server.heard != 1 || server.pulls++ != 0)
        wrong_ = "a push or a pull too many, or too early";
      if (in.op == Op::pull) list.push_back({Space::weights, c, 0, true, "1"});
      return;
    }
    if (in.op == Op::push) {
      std::size_t const push = server.pushes++;
      if (in.round() != push) wrong_ = "push " + std::to_string(in.round()) + " too early or late";
      std::string sum;
      for (std::size_t i = push * per_push();
           i < std::min((push + 1) * per_push(), static_cast<std::size_t>(program_.microbatches));
           ++i)
        sum += "+ change" + std::to_string(i);
      if (sum.empty()) wrong_ = "an empty push";
      list.push_back({Space::sum, c, 0, false, sum});
      list.push_back({Space::sum, c, 0, true, "="});
      return;
    }
    if (!in.snapshot()) {
      list.push_back({Space::weights, c, in.version, false, "*"});
      list.push_back({Space::weights, c, in.next_version, false, "*"});
      list.push_back({Space::weights, c, in.next_version, true, "@" + std::to_string(in.version)});
      return;
    }
    std::size_t const rounds = in.rounds();
    std::size_t const wait = in.last_pull() ? server.all + 1 : rounds;
    if (server.heard < wait || rounds < server.taken) wrong_ = "a snapshot that is not there";
    if (rounds + in.waves() > server.pushes) wrong_ = "an own push that is not made";
    if (wait != 0) ++server.asked;
    server.taken = rounds;
    list.push_back({Space::weights, c, in.next_version, true,
                    in.last_pull() ? "w everything" : weights(rounds, rounds + in.waves(), 0, 0)});
  }

  /// "#5" for a sum of five, none of them twice.
  static std::string count(std::string const& sum) {
    std::vector<std::string> terms;
    for (std::size_t i = 0; i < sum.size(); i = std::min(sum.find('+', i + 1), sum.size()))
      terms.push_back(sum.substr(i, std::min(sum.find('+', i + 1), sum.size()) - i));
    std::sort(terms.begin(), terms.end());
    bool const twice = std::adjacent_find(terms.begin(), terms.end()) != terms.end();
    return twice ? "a sum with a term twice" : "#" + std::to_string(terms.size());
  }

  [[nodiscard]] std::size_t slots_of(Access const& a) const {
    if (a.space == Space::target || a.space == Space::gradient || a.space == Space::sum ||
        a.space == Space::ends)
      return static_cast<std::size_t>(-1);
    auto const& cell = program_.cells[a.place];
    switch (a.space) {
      case Space::x:
        return cell.x_slots;
      case Space::kept:
        return cell.kept_slots;
      case Space::dy:
        return cell.dy_slots;
      case Space::inner:
        return cell.inner_slots;
      case Space::y:
        return cell.y_slots;
      case Space::dx:
        return cell.dx_slots;
      default:
        return cell.versions;
    }
  }

  /// Groups of a stage; one that stands for all, where there are none.
  [[nodiscard]] std::vector<std::size_t> groups_of(std::size_t stage) const {
    std::vector<std::size_t> groups;
    for (std::size_t g = 0; g < program_.groups.size(); ++g)
      if (static_cast<std::size_t>(program_.groups[g].stage) == stage) groups.push_back(g);
    if (groups.empty()) groups.push_back(0);
    return groups;
  }
  [[nodiscard]] std::vector<std::size_t> holders_of(std::size_t stage) const {
    std::vector<std::size_t> holders;
    for (std::size_t c = 0; c < program_.cells.size(); ++c)
      if (static_cast<std::size_t>(program_.cells[c].stage) == stage) holders.push_back(c);
    return holders;
  }
  /// Microbatches that a cell takes, as `count` writes it.
  [[nodiscard]] std::string taken(std::size_t cell) const {
    std::size_t taken = 0;
    for (auto const& in : program_.ranks[static_cast<std::size_t>(program_.cells[cell].rank)].code)
      taken += in.op == Op::forward && in.cell == cell ? 1 : 0;
    return "#" + std::to_string(taken);
  }

  std::vector<Access> accesses(std::size_t r, Instruction const& in) {
    std::vector<Access> list;
    std::size_t const c = in.cell;
    auto const m = in.microbatch;
    auto const& cell = program_.cells[c];
    auto const s = static_cast<std::size_t>(cell.depth);
    auto const output = [&](std::size_t stage) { return named("y", stage, m); };
    auto const gradient = [&](std::size_t stage) { return named("dy", stage, m); };
    bool const first = s == 0;
    bool const last = std::all_of(program_.cells.begin(), program_.cells.end(),
                                  [&](auto const& other) { return other.depth <= cell.depth; });
    switch (in.op) {
      case Op::gather_input:
        for (auto const& edge : program_.row_edges)
          if (edge.to == c && edge.forward.used)
            list.push_back({Space::y, edge.from, in.y, false, output(s - 1)});
        list.push_back({Space::x, c, in.x, true, first ? "batch" : output(s - 1)});
        return list;
      case Op::gather_gradient:
        for (auto const& edge : program_.row_edges)
          if (edge.from == c && edge.backward.used)
            list.push_back({Space::dx, edge.to, in.dx, false, gradient(s)});
        list.push_back({Space::dy, c, in.dy, true, gradient(s)});
        return list;
      case Op::gather_target:
        list.push_back({Space::target, r, 0, true, named("t", 0, m)});
        return list;
      case Op::reduce:
        for (std::size_t const d : holders_of(in.stage))
          list.push_back({Space::gradient, d, in.group, false, taken(d)});
        list.push_back({Space::sum, c, in.group, true,
                        std::to_string(in.part()) + "/" + std::to_string(in.parts())});
        return list;
      case Op::hand_in:
      case Op::finish:
      case Op::update:
        end_step(r, in.op, list);
        return list;
      case Op::push:
      case Op::pull:
        exchange(r, in, list);
        return list;
      case Op::apply: {
        auto const per = options_.staleness.microbatches;
        if (streams_changes()) {
          auto const change = " change" + std::to_string(in.update());
          list.push_back({Space::weights, c, in.version, false, wanted_[{c, in.update()}]});
          list.push_back({Space::weights, c, in.next_version, true, change});
          list.push_back({Space::gradient, c, 0, false, "+" + std::to_string(in.update())});
          list.push_back({Space::gradient, c, 0, true, "="});
          list.push_back({Space::sum, c, 0, true, "+" + change});
          ++made_[c];
          return list;
        }
        list.push_back({Space::weights, c, in.version, false, std::to_string(in.update())});
        list.push_back({Space::weights, c, in.next_version, true, std::to_string(in.update() + 1)});
        list.push_back({Space::gradient, c, 0, false, "#" + std::to_string(per)});
        list.push_back({Space::gradient, c, 0, true, "="});
        ++made_[c];
        return list;
      }
      case Op::pass:
        return list;
      default:
        break;
    }
    bool const replicated = !cell.rows.whole();
    bool const input = gives_input_gradient(in.op);
    bool const weight = gives_weight_gradient(in.op);
    auto const kept = named("kept", s, m);
    if (!first || cell.gathers_input)
      list.push_back({Space::x, c, in.x, false, first ? "batch" : output(s - 1)});
    if (alone()) {
      auto& wanted = wanted_[{c, m}];
      if (in.op == Op::forward && streams_changes())
        wanted = seen_by(c, m);
      else if (in.op == Op::forward)
        wanted = std::to_string(options_.staleness.version(
            options_.staleness.policy, static_cast<int>(m) / options_.staleness.microbatches,
            made_[c]));
      list.push_back({Space::weights, c, in.version, false, wanted});
    } else {
      list.push_back({Space::weights, c, in.version, false, "0"});
    }
    if (in.op == Op::forward || in.op == Op::recompute) {
      bool const bare = again_ && in.op == Op::forward;
      list.push_back({Space::kept, c, in.kept, true, bare ? "nothing" : kept});
      if (in.op == Op::forward && cell.after >= 0)
        list.push_back({Space::x, static_cast<std::size_t>(cell.after), in.y, true, output(s)});
      else if (in.op == Op::forward && !last)
        list.push_back({Space::y, c, in.y, true, output(s)});
      if (last && !program_.training && replicated)
        list.push_back({Space::target, r, 0, false, named("t", 0, m)});
      return list;
    }
    list.push_back({Space::kept, c, in.kept, false, kept});
    list.push_back({Space::kept, c, in.kept, true, kept});  // a backward may change what it saved
    if (input && last && replicated) list.push_back({Space::target, r, 0, false, named("t", 0, m)});
    list.push_back({Space::dy, c, in.dy, input && last, gradient(s)});  // the loss writes it
    list.push_back({Space::inner, c, in.inner, input, named("inner", s, m)});
    if (input && cell.before >= 0)
      list.push_back(
          {Space::dy, static_cast<std::size_t>(cell.before), in.dx, true, gradient(s - 1)});
    else if (input && !first)
      list.push_back({Space::dx, c, in.dx, true, gradient(s - 1)});
    if (weight)
      for (std::size_t const g :
           computes_part(in.op) ? std::vector<std::size_t>{in.group} : groups_of(in.stage))
        list.push_back({Space::gradient, c, g, true, "+" + std::to_string(m)});
    return list;
  }

  void end_step(std::size_t r, Op op, std::vector<Access>& list) const {
    auto const ranks = static_cast<std::size_t>(program_.computing);
    if (op == Op::hand_in) return list.push_back({Space::ends, r, 0, true, "handed in"});
    if (op == Op::update) {
      for (std::size_t o = 0; o < ranks; ++o)
        list.push_back({Space::ends, o, 1, false, "finished"});
      return list.push_back({Space::ends, r, 2, true, "updated"});
    }
    for (std::size_t c = 0; c < program_.cells.size(); ++c) {
      if (static_cast<std::size_t>(program_.cells[c].rank) != r) continue;
      auto const stage = static_cast<std::size_t>(program_.cells[c].stage);
      auto const holders = holders_of(stage);
      if (program_.groups.empty() || holders.size() == 1) {
        for (std::size_t const d : holders)
          if (d == c || c == holders.front())
            list.push_back({Space::gradient, d, groups_of(stage).front(), false, taken(d)});
        continue;
      }
      for (std::size_t const g : groups_of(stage))
        for (std::size_t p = 0; p < holders.size(); ++p)
          list.push_back({Space::sum, holders[p], g, false,
                          std::to_string(p) + "/" + std::to_string(holders.size())});
      if (options_.grouping.chain_squares && c != holders.front())
        list.push_back({Space::ends, static_cast<std::size_t>(program_.cells[c - 1].rank), 1, false,
                        "finished"});
    }
    list.push_back({Space::ends, r, 1, true, "finished"});
  }

  Program const& program_;
  LayOutOptions const& options_;
  bool again_ = false;
  std::string wrong_;            // with an instruction, whatever the others do
  std::vector<Server> servers_;  // [cells]
  std::vector<int> made_;        // [cells] updates
  std::map<std::pair<std::size_t, std::uint32_t>, std::string> wanted_;  // version at (cell, F)
};

}  // namespace slow_player
