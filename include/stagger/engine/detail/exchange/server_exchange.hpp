// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The common part of steps and streams that exchange parameters with a server: the
///         worker's link, the layers of its stages, and signals for what has arrived.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include <stagger/core/backoff.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/engine/detail/exchange/lacked_pushes.hpp>
#include <stagger/engine/detail/exchange/told_layers.hpp>
#include <stagger/engine/detail/exchange_part.hpp>
#include <stagger/engine/machine.hpp>
#include <stagger/engine/setup.hpp>
#include <stagger/parameters/parameter_link.hpp>
#include <stagger/program/exchange_rules.hpp>
#include <stagger/program/program.hpp>

namespace stagger::detail {

/// The layers of a cell that a worker exchanges.
struct CellLayers {
  IndexRange layers{};                    // none if another rank or process exchanges the stage
  FixedArray<std::uint32_t> contained{};  // [workers] pushes of each in the weights that it has
  FixedArray<std::uint32_t> seen{};       // likewise, in the weights that the step sees
  std::atomic<std::size_t> missing{0};    // layers that it asked for last and that have not arrived
};

/// The server refuses a push that is not finite, but the optimizer that made it has as much in its
/// state, with which no later push would be finite: such a state begins again with zeros.
inline void reset_states(Machine& machine, FixedArray<CellLayers> const& cells) noexcept {
  auto const reset = [&](std::size_t l) {
    LayerParameters& own = machine.parameters()[l];
    auto const blocks = own.blocks();
    for (std::size_t b = 1; b < blocks.size(); ++b) {
      if (blocks[b].size() != own.bytes_of_values()) continue;
      if (own.memory() != nullptr)
        reset_on_device(own, blocks[b]);
      else if (!own.all_finite(blocks[b].data()))
        own.zero_states();
    }
  };
  for (auto const& cell : cells)
    for (std::size_t const l : cell.layers) {
      reset(l);
      if (machine.model.grouped != nullptr) machine.model.grouped->each_copy(l, reset);
    }
}

[[nodiscard]] [[gnu::cold]] inline std::string waited_for(ParameterLink const& link) {
  std::string const words = link.waits_for();
  return words.empty() ? "weights that are on their way" : words;
}

/// Waits while no program runs, in which signals tell what has arrived.
/// @param not_here  what is waited for and has not come
/// @throws Error    deadline
template <class Here>
[[gnu::cold]] void await(ParameterLink const& link, char const* not_here, double most_s,
                         Here here) {
  if (!wait_until(here, most_s))
    raise(Errc::deadline, not_here, " for ", most_s, " s; the worker waits for ", waited_for(link));
}

inline constexpr char const* not_let_in = "the server has not let the worker begin";

/// Begins a stream. A worker that comes back may have to wait until the others have ended theirs.
/// @throws Error  deadline
[[gnu::cold]] inline void begin_and_await(ParameterLink& link, double most_s) {
  link.begin();
  await(link, not_let_in, most_s, [&] { return link.begins(); });
}

/// Gives the actions of a stage the pushes that their weights lacked.
/// @param most_of  (minibatch) -> MostLacked
template <class MostOf>
[[gnu::cold]] void note_lacked(RankState& rank, int stage, int minibatches, MostOf most_of) {
  for (schedule::Span& span : rank.spans) {
    if (!schedule::is_compute(span.action.kind) || span.action.stage != stage) continue;
    MostLacked const most =
        most_of(minibatches == 1 ? 0 : std::min(span.action.microbatch, minibatches - 1));
    span.lacked = most.pushes;
    span.lacked_of = static_cast<std::uint16_t>(std::max(most.worker, 0));
  }
}

/// Gives the members of a group what their first copy of a layer has received.
/// @param blocks  of values and states
/// @return the number of copies
inline std::size_t copy_to_members(Machine& machine, std::size_t layer, std::size_t blocks) {
  std::size_t copies = 0;
  auto const from = machine.parameters()[layer].blocks();
  machine.model.grouped->each_copy(layer, [&](std::size_t copy) {
    auto const to = machine.parameters()[copy].blocks();
    for (std::size_t b = 0; b < blocks; ++b)
      if (!from[b].empty()) std::memcpy(to[b].data(), from[b].data(), from[b].size());
    ++copies;
  });
  return copies;
}

inline void scale_gradients(LayerParameters const& layer, double scale) noexcept {
  if (scale != 1) layer.scale_values(layer.stored().gradients.data(), scale);
}

/// The numbers of a worker's optimizer when it joined, and what the server has said of its changes.
class AgreedOptimizer {
 public:
  AgreedOptimizer() = default;
  [[gnu::cold]] AgreedOptimizer(Machine const& machine, double change_factor)
      : digest_(machine.optimizer_digest()),
        words_(words_of(machine)),
        change_factor_(change_factor) {}

  /// Multiplies a change that the optimizer has made by the worker's share, if changes are
  /// averaged.
  void share(LayerParameters const& layer, std::byte* change) const noexcept {
    if (change_factor_ != 1) layer.scale_values(change, change_factor_);
  }

  /// Refuses numbers that were changed, if it is the server's optimizer that takes the steps.
  void require(Machine const& machine, StalenessModel const& staleness) const {
    if (staleness.pushes == staleness::Pushes::gradients && machine.optimizer_digest() != digest_)
      raise(Errc::mismatch, "the optimizer of this worker was '", words_,
            "' when it joined and is now '", words_of(machine),
            "', but workers push gradients, with which the server takes the steps; leave its "
            "numbers as they were, and let a rate that changes follow from the number of the step");
  }

 private:
  [[gnu::cold]] static std::string words_of(Machine const& machine) {
    OptimizerCall const& own = machine.model.optimizer;
    return own.words == nullptr ? std::string() : own.words(own.optimizer);
  }
  std::uint64_t digest_ = 0;
  std::string words_;
  double change_factor_ = 1;
};

/// How a machine drives an exchange.
class DrivenExchange : public Exchange {
 public:
  DrivenExchange(DrivenExchange const&) = delete;
  DrivenExchange& operator=(DrivenExchange const&) = delete;
  ~DrivenExchange() override = default;

  /// Where a step fails while it begins, what has begun of it ends, so that the next one can begin.
  [[gnu::cold]] void begin_step(Machine& machine) final {
    if (!machine.program().exchanges()) return;
    try {
      begin_exchange();
    } catch (...) {
      end_step(machine, std::current_exception());
      throw;
    }
  }
  [[gnu::cold]] bool execute(Machine& machine, RankState& rank, Instruction const& in,
                             Clock const& clock) final {
    bool const crosses = exchanges(in.op);
    if (!crosses && (in.op != Op::apply || machine.program().flushes)) return false;
    if (machine.model.memory == nullptr) tell_gradients(machine, in);  // a device has told of them
    bool const record = rank.record && clock.read != nullptr && crosses;
    double const start_s = record ? clock() : 0;
    if (carry_out(in) && record) rank.spans.push_back({action_of(in), start_s, clock(), false});
    return true;
  }

  [[gnu::cold]] void make(Machine& machine, Instruction const& push) final {
    tell_gradients(machine, push);
    make_push(push);
  }

 protected:
  DrivenExchange() = default;
  /// Enqueues what a push sends, on a device.
  virtual void make_push(Instruction const& /*push*/) {}
  /// Begins a step of a program that exchanges parameters.
  virtual void begin_exchange() = 0;
  /// Carries out `apply`, `push` or `pull`.
  /// @return whether anything is sent to the server or received from it
  virtual bool carry_out(Instruction const&) = 0;
  /// The layers that a push sends: those of the cell, or of a gradient group.
  [[nodiscard]] virtual IndexRange pushed_by(Instruction const&) const noexcept = 0;

 private:
  /// Tells parts of the gradients that an instruction pushes, unless updates have told of them.
  void tell_gradients(Machine& machine, Instruction const& in) const {
    if (pushes(in.op) && machine.program().pushes_groups)  // before a rank has finished
      machine.gradients_complete(pushed_by(in));
  }
};

/// The exchange of one worker. Its link is open from the beginning of a stream to its end; for
/// steps, until one fails.
class ServerExchange : public DrivenExchange, protected ParameterListener {
 public:
  [[gnu::cold]] void load(Machine& machine) override {
    program_ = &machine.program();
    if (!program_->exchanges()) return;
    if (cells_.size() != program_->cells.size()) {
      cells_ = FixedArray<CellLayers>(program_->cells.size());
      for (CellLayers& cell : cells_) {
        cell.contained = FixedArray<std::uint32_t>(link_->workers());
        cell.seen = FixedArray<std::uint32_t>(link_->workers());
      }
    }
    for (std::size_t c = 0; c < cells_.size(); ++c) {
      CellLayers& cell = cells_[c];
      cell.layers = {};
      if (is_first_holder(program_->cells, c))
        cell.layers = machine.model.layers_of(program_->cells[c].stage);
      for (std::size_t const l : cell.layers) cell_of_[l] = c;
    }
  }
  [[gnu::cold]] void runs(bool const* ranks) override {
    if (!program_->exchanges()) return;
    bool moved = false;
    for (std::size_t c = 0; c < cells_.size(); ++c) {
      CellLayers& cell = cells_[c];
      bool const here = ranks[program_->cells[c].rank];
      for (std::size_t const l : cell.layers)
        if (std::exchange(here_[l], here) != here) moved = moved || here;
      if (!here) cell.layers = {};
    }
    if (open_ && moved) read_moved();
  }
  /// Called once, after the objects that the server notifies have been constructed.
  /// @param kept    keeps what the staleness model and the optimizer point into
  /// @throws Error  mismatch for a worker that differs from the others
  [[gnu::cold]] void join(std::shared_ptr<void const> const& kept) {
    bool const copies = machine_.model.grouped != nullptr && packed_.size() == 0;
    auto const told = copies ? layers_told(machine_.model, false) : FixedArray<LayerParameters>();
    auto const& layers = copies ? told : exchanged();
    WorkerRules rules{staleness_.push_minibatches,
                      staleness_.pushes,
                      staleness_.adds,
                      most_ahead(staleness_),
                      machine_.model.optimizer.host_rule(),
                      kept};
    rules.late = staleness_.late;
    rules.late_policy = staleness_.policy;
    if (machine_.model.grouped != nullptr) rules.shared = machine_.model.grouped->description;
    link_->join({layers.data(), layers.size()}, rules, *this);
    joined_ = true;
    lacked_ = LackedPushes(link_->workers(), link_->worker());
    agreed_ = AgreedOptimizer(machine_, link_->change_factor());
  }
  void comes() noexcept override { failed_ = false; }
  [[gnu::cold]] void fail_between(std::exception_ptr const& why, bool again) noexcept override {
    if (failed_ && !again) return;
    try {
      machine_.take_back_shown();  // before the server's values take their place
      if (!std::exchange(open_, true)) link_->begin();  // others may wait for that
    } catch (...) {  // the server does not let it begin, so that nobody waits for it
    }
    close(why);
  }
  void add_memory(Memory& memory) const override { memory.parameters += bytes_of(packed_); }
  [[nodiscard]] int worker() const noexcept override { return link_->worker(); }
  [[nodiscard]] std::span<std::uint64_t const> staleness(std::optional<int> worker) const override {
    return lacked_.of(worker);
  }
  [[nodiscard]] std::string waits_for() const override { return waited_for(*link_); }

 protected:
  /// @param packed  [layers] what is exchanged of each; empty: its values, or a copy of them if a
  ///                device has the parameters
  [[gnu::cold]] ServerExchange(std::shared_ptr<ParameterLink> link, Machine& machine,
                               StalenessModel const& staleness,
                               FixedArray<LayerParameters> packed = {})
      : link_(std::move(link)),
        machine_(machine),
        staleness_(staleness),
        packed_(packed.size() == 0 && machine.model.memory != nullptr
                    ? layers_told(machine.model, false,
                                  staleness.pushes == staleness::Pushes::gradients)
                    : std::move(packed)),
        cell_of_(machine.parameters().size()),
        here_(machine.parameters().size()) {}
  /// Ends all notifications. Called by the destructor of the most derived class, whose functions
  /// they call.
  void leave() noexcept {
    if (!std::exchange(joined_, false)) return;
    if (open_) link_->end(nullptr);  // the others go on without it
    link_->leave();
    if (on_device()) machine_.model.host_copies = std::move(packed_);  // which it may still write
  }
  [[nodiscard]] IndexRange pushed_by(Instruction const& in) const noexcept final {
    if (program_->pushes_sums ||
        (program_->pushes_groups && is_only_holder(program_->cells, in.cell)))
      return machine_.model.layers_of(program_->groups[in.group]);
    return cells_[in.cell].layers;
  }
  /// Whether a device has the parameters, so that the host exchanges copies.
  [[nodiscard]] bool on_device() const noexcept { return machine_.model.memory != nullptr; }
  [[nodiscard]] AgreedOptimizer const& agreed() const noexcept { return agreed_; }
  /// Opens the link, unless it is open. Where this throws, close() must follow.
  /// @return whether it was closed
  bool open() {
    if (std::exchange(open_, true)) return false;
    begin_and_await(*link_, machine_.options().deadline_s);
    begun();
    read_newest();
    return true;
  }
  [[gnu::cold]] virtual void close(std::exception_ptr const& why) {
    open_ = false;
    failed_ = why != nullptr;
    link_->end(why);
    if (!why) return;
    reset_states(machine_, cells_);
    try {
      read_newest();
    } catch (...) {  // `why` is reported; weights stay until the link opens again
    }
  }
  [[nodiscard]] bool is_open() const noexcept { return open_; }

  /// [layers] the parameters whose values are exchanged.
  [[nodiscard]] FixedArray<LayerParameters>& exchanged() noexcept {
    return packed_.size() != 0 ? packed_ : machine_.parameters();
  }
  /// Called when the values of a layer from the server are in `exchanged()`.
  void take_up(std::size_t l) {
    received(l);
    if (machine_.model.grouped == nullptr) return;
    std::size_t const blocks = packed_.size() != 0 ? 3 : 1;  // without states
    for (std::size_t n = copy_to_members(machine_, l, blocks); n-- > 0;)
      machine_.traffic.add(program_->cells[cell_of_[l]].rank, TrafficKind::parameters,
                           {1, exchanged()[l].bytes_of_values()});
  }
  /// Takes the weights of a layer that have arrived, and adds the worker's own pushes that they
  /// lack, one after the other.
  /// @param own   pushes of its own that they must contain
  /// @param push  (number) -> the values of an own push
  template <class Push>
  VersionTag take(std::size_t l, std::uint32_t rounds, std::byte* to, std::uint32_t own,
                  Push push) {
    VersionTag const tag = link_->take(l, rounds, to);
    for (std::uint32_t number = tag.own(); number < own; ++number)
      machine_.parameters()[l].add_values(to, push(number));
    return tag;
  }
  virtual void begun() {}  // a stream, before its first weights are read
  /// Reads the weights of stages that another process ran before.
  [[gnu::cold]] virtual void read_moved() { read_newest(); }
  /// Moves them to the layer's own memory, if they were packed, or a device has it.
  virtual void received(std::size_t l) {
    LayerParameters const& own = machine_.parameters()[l];
    if (on_device()) copy_enqueued(own, own.values(), packed_[l].values().data());
  }

  [[nodiscard]] std::size_t cell_of(std::size_t layer) const noexcept { return cell_of_[layer]; }
  /// A layer that a cell has asked for has arrived; if it is the last one, the cell's signal is
  /// given.
  /// @param count  value of the cell's signal then
  void one_arrived(std::size_t layer, std::uint32_t count) noexcept {
    std::size_t const c = cell_of_[layer];
    if (cells_[c].missing.fetch_sub(1) == 1) tell(c, count);
  }
  /// Gives a cell's signal, up to `count`.
  void tell(std::size_t cell, std::uint32_t count) noexcept {
    auto const& outside = machine_.outside();
    outside.give(outside.self, program_->outside_signal(cell), count);
  }
  void lost(std::exception_ptr why) noexcept override {
    auto const& outside = machine_.outside();
    outside.fail(outside.self, std::move(why));
  }

  /// After a step or stream: counts how stale the weights of its minibatches were.
  /// @param contained  (cell, minibatch) -> [workers] pushes of each that its weights contained
  template <class Contained>
  [[gnu::cold]] void count_staleness(int first, int minibatches, Contained contained) {
    auto const made = [&](int m) {
      return static_cast<std::uint32_t>((first + m) / staleness_.push_minibatches);
    };
    for (int m = 0; m < minibatches; ++m)
      lacked_.count(made(m), [&](auto look) {
        for (std::size_t c = 0; c < cells_.size(); ++c)
          if (cells_[c].layers.size() != 0) look(contained(c, m));
      });
    for (std::size_t c = 0; c < cells_.size(); ++c) {
      RankState& rank = machine_.ranks()[program_->cells[c].rank];
      if (!rank.record || cells_[c].layers.size() == 0) continue;
      note_lacked(rank, program_->cells[c].stage, minibatches,
                  [&](int m) { return lacked_.most(made(m), contained(c, m)); });
    }
  }

  /// Counts a part of a layer that was sent to the server, or received. Called by its rank's
  /// thread.
  void count(std::size_t l, TrafficKind kind, ByteRange part) {
    machine_.traffic.add(program_->cells[cell_of_[l]].rank, kind,
                         {1, link_->carried_bytes(exchanged()[l], part)});
  }
  void count(std::size_t l, TrafficKind kind) {
    count(l, kind, {0, machine_.model.counted(l) ? exchanged()[l].bytes_of_values() : 0});
  }

  std::shared_ptr<ParameterLink> link_;
  Machine& machine_;
  StalenessModel staleness_;
  Program const* program_ = nullptr;
  FixedArray<CellLayers> cells_;        // of the program
  FixedArray<LayerParameters> packed_;  // [layers] or none

 private:
  /// The transfers of a stage's layers are shown as one span.
  void carried(std::size_t layer, bool push, std::uint32_t number, double start_s,
               double end_s) override {
    Cell const& cell = program_->cells[cell_of_[layer]];
    RankState& rank = machine_.ranks()[cell.rank];
    if (!rank.record) return;
    schedule::Action const action{push ? schedule::Kind::push : schedule::Kind::pull, cell.stage,
                                  static_cast<int>(program_->flushes      ? 0
                                                   : number == all_rounds ? program_->pushes()
                                                                          : number)};
    for (auto span = rank.spans.end(); span != rank.spans.begin();) {
      if ((--span)->end_s < start_s) break;  // it was recorded before this transfer began
      if (!(span->action == action)) continue;
      span->start_s = std::min(span->start_s, start_s);
      span->end_s = std::max(span->end_s, end_s);
      return;
    }
    rank.spans.push_back({action, start_s, end_s, false});
  }

  [[gnu::cold]] void read_newest() {
    for (CellLayers const& cell : cells_)
      for (std::size_t const l : cell.layers) {
        link_->read(l, exchanged()[l].values().data());
        count(l, TrafficKind::pulls);
        take_up(l);
      }
  }

  LackedPushes lacked_;
  FixedArray<std::size_t> cell_of_;  // [layers]
  FixedArray<bool> here_;            // [layers] whether this process, of several, exchanges it
  AgreedOptimizer agreed_;
  bool joined_ = false, open_ = false;
  bool failed_ = false;  // an error of the last step has closed it, so that the others know
};

/// What adds the exchange with a server to a pipeline.
template <class Made> class ExchangePolicy final : public PolicyPart {
 public:
  [[gnu::cold]] void extend(Machine& machine, Setup const& setup) const override {
    auto made = std::make_unique<Made>(setup.server.link, machine, setup.staleness);
    made->join(setup.kept);
    machine.set_exchange(&machine.add(std::move(made)));
  }
};

template <class Made> std::shared_ptr<PolicyPart const> exchange_policy() {
  return std::make_shared<ExchangePolicy<Made>>();
}

}  // namespace stagger::detail
