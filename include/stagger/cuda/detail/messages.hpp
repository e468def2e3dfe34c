// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The messages of a program between GPUs: where their values lie, and what waits for them.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <stagger/core/fixed_array.hpp>
#include <stagger/core/portable.hpp>
#include <stagger/cuda/detail/distributed_state.hpp>
#include <stagger/cuda/detail/routes.hpp>
#include <stagger/cuda/detail/streams.hpp>
#include <stagger/cuda/wire.hpp>
#include <stagger/engine/replica_run.hpp>
#include <stagger/program/describe.hpp>

namespace stagger::cuda::detail {

/// The slots at both ends of each route. Each end has its own, so that a value can be sent while
/// the previous one is still being read.
class RouteValues {
 public:
  RouteValues(Machine& machine, Wires const& wires) : state_{machine}, wires_(wires) {}

  /// Makes the slots. Allocates only what earlier programs did not need.
  /// @throws Error bad_configuration for a value that cannot be sent
  [[gnu::cold]] void load(Routes const& routes) {
    auto const& program = state_.program();
    std::size_t const directions = 2 * (program.cells.size() + program.row_edges.size());
    if (own_.size() < directions) own_ = FixedArray<OwnSlots>(directions);
    for (Route const& route : routes.all) {
      static_cast<void>(wire(route.cell));
      part(route);
    }
  }

  /// The functions that send the values after a cell.
  [[nodiscard]] WireType const& wire(std::size_t cell) const {
    auto const& type = type_behind(cell);
    for (std::size_t i = 0; i < wires_.count; ++i)
      if (wires_.table[i].type == &type && wires_.table[i].write != nullptr) return wires_.table[i];
    raise(Errc::bad_configuration, "the output of layer ",
          state_.machine.run.cells[cell].back->number,
          " cannot go to another GPU; make it a cuda::Tensor, give its type a member fields() "
          "that returns a std::tie of such, or specialise stagger::cuda::Wire for it");
  }
  [[nodiscard]] bool shapes_change() const noexcept { return wires_.shapes_change; }

  /// The number, over all routes, of the slot that an instruction sends or receives.
  [[nodiscard]] static std::size_t slot(Route const& route, Instruction const& in) noexcept {
    return route.first_slot + slot_of_route(route, in);
  }
  /// Whether no row of the microbatch is sent over a route.
  [[nodiscard]] bool empty(Route const& route, Instruction const& in) const noexcept {
    if (route.row_edge == Route::whole) return false;
    auto const [sender, receiver] = ends_of(route);
    return rows_of(sender, in).common(rows_of(receiver, in)).count() == 0;
  }
  /// The value that is sent over a route; or rows of it, whose copy is enqueued.
  [[nodiscard]] void* given(Route const& route, Instruction const& in) const {
    std::size_t const slot = slot_of_route(route, in);
    void* const own = own_[number_of(route)].given[slot];
    if (route.row_edge == Route::whole) return own;
    auto const [sender, receiver] = ends_of(route);
    auto const& cell = state_.machine.run.cells[sender];
    void* const value = route.forward ? cell.back->y[slot] : cell.dx[slot];
    auto const rows = rows_of(sender, in);
    auto const both = rows.common(rows_of(receiver, in));
    auto const& type = type_behind(route.cell);
    std::size_t const each = rows_for_each(type, value, rows.count());
    stagger::detail::RowSource const& source = source_of(route);
    if (each != 0 && source.blocks != nullptr) {
      std::size_t const all = source.blocks->count(value);
      source.require_columns(all);
      IndexRange const columns = source.columns(all);
      stagger::Block const size{both.count() * each, columns.size()};
      if (size.columns != all) {
        source.blocks->resize(own, value, size);
        source.blocks->copy(own, {}, value, {(both.first - rows.first) * each, columns.first},
                            size);
        return own;
      }
    }
    if (both.count() == rows.count() || each == 0) return value;
    take_rows(type, own, value, rows, both, each);
    return own;
  }
  /// The place where it is received.
  [[nodiscard]] void* taken(Route const& route, Instruction const& in) const {
    std::size_t const slot = slot_of_route(route, in);
    if (route.row_edge != Route::whole) return own_[number_of(route)].taken[slot];
    auto const& cells = state_.machine.run.cells;
    return route.forward ? cells[state_.after(route.cell)].x[slot]
                         : cells[route.cell].layers.back().dy[slot];
  }
  /// Whether an instruction gathers what has arrived over a route.
  [[nodiscard]] bool gathers(Route const& route, Instruction const& in) const noexcept {
    return route.row_edge != Route::whole && gathers_values(in.op) &&
           is_forward(in.op) == route.forward && ends_of(route).receiver == in.cell;
  }

 private:
  /// Slots of one direction of an edge that only one end has.
  struct OwnSlots {
    stagger::detail::Slots given;  // of a row edge: if the sender sends only some rows of a value
    stagger::detail::Slots taken;  // of a row edge
  };
  /// The cells at the ends of a row edge.
  struct Ends {
    std::size_t sender;
    std::size_t receiver;
  };

  [[nodiscard]] static std::size_t slot_of_route(Route const& route,
                                                 Instruction const& in) noexcept {
    return route.forward ? in.y : in.dx;
  }
  [[nodiscard]] std::size_t number_of(Route const& route) const noexcept {
    bool const whole = route.row_edge == Route::whole;
    std::size_t const edge = whole ? route.cell : state_.program().cells.size() + route.row_edge;
    return 2 * edge + (route.forward ? 0 : 1);
  }
  [[nodiscard]] Ends ends_of(Route const& route) const noexcept {
    RowEdge const edge = state_.program().row_edges[route.row_edge];
    return route.forward ? Ends{edge.from, edge.to} : Ends{edge.to, edge.from};
  }
  [[nodiscard]] stagger::detail::RowRange rows_of(std::size_t cell,
                                                  Instruction const& in) const noexcept {
    return state_.machine.run.replica_run->cells[cell].rows[in.microbatch];
  }
  [[nodiscard]] stagger::detail::SlotType const& type_behind(std::size_t cell) const noexcept {
    return *state_.machine.run.cells[cell].layers.back().ops->output;
  }

  /// The source that takes what arrives over a route of rows.
  [[nodiscard]] stagger::detail::RowSource& source_of(Route const& route) const {
    auto const [sender, receiver] = ends_of(route);
    auto& sources = state_.machine.run.replica_run->sources(route.forward);
    std::size_t s = 0;
    while (sources[s].cell != receiver || sources[s].maker != sender) ++s;
    return sources[s];
  }
  /// Gives each end of a route slots of its own.
  [[gnu::cold]] void part(Route const& route) {
    auto& run = state_.machine.run;
    auto const& type = type_behind(route.cell);
    OwnSlots& own = own_[number_of(route)];
    own.given.provide(type, route.slots);
    if (route.row_edge == Route::whole) {
      auto& given = route.forward ? run.cells[route.cell].layers.back().y
                                  : run.cells[state_.after(route.cell)].dx;
      given = places(own.given, type);
      return;
    }
    own.taken.provide(type, route.slots);
    stagger::detail::RowSource& source = source_of(route);
    source.whole = source.from;
    source.from = places(own.taken, type);
    source.only_common = true;
  }

  DistributedState state_;
  Wires wires_;
  FixedArray<OwnSlots> own_;  // [cells and row edges][directions]
};

/// Copies blocks of memory over channels: within this process on a stream of the GPU that receives
/// them, to another process as a send here and a receive there.
class Transfer {
 public:
  explicit Transfer(Streams& streams) : streams_(streams) {}

  void clear() noexcept {
    from_.clear();
    to_.clear();
  }
  /// Adds one block. An end in another process need not have memory.
  void add(std::span<std::byte> from, std::span<std::byte> to) {
    from_.push_back({from.data(), from.size()});
    to_.push_back({to.data(), to.size()});
  }
  /// Adds the blocks of a value for the end that is in this process, the sender or the receiver.
  void add_given(WireType const& type, void* value) { type.blocks(value, from_); }
  void add_taken(WireType const& type, void* value) { type.blocks(value, to_); }

  /// The size of what is sent, in bytes.
  [[nodiscard]] std::uint64_t bytes() const noexcept {
    std::uint64_t sum = 0;
    for (Block const& block : from_) sum += block.bytes;
    return sum;
  }
  /// Lets a channel wait for everything that was enqueued on a rank's stream so far.
  void follow(std::size_t rank, std::size_t number) const {
    if (!streams_.own(rank)) return;
    auto& made = streams_.event(streams_.gpu_of(rank), streams_.numbers().rank(rank));
    streams_.record(streams_.compute(rank), made);
    streams_.wait(*streams_.gpus().channels()[number].stream, made);
  }
  /// Enqueues the copies on a channel.
  void enqueue(std::size_t number) const {
    auto const& [places, gpu, stream] = streams_.gpus().channels()[number];
    if (from_.empty() && to_.empty()) return;
    std::size_t const sender = streams_.gpus().at(places.first);
    if (auto* const processes = streams_.gpus().processes())
      return sender < streams_.gpus().size() ? processes->send(number, from_)
                                             : processes->receive(number, to_);
    streams_.use(gpu);
    for (std::size_t i = 0; i < from_.size(); ++i)
      streams_.ask(
          [&] { return streams_.gpus().copy(to_[i], gpu, from_[i].data, sender, stream->get()); },
          "copy a value to another GPU");
  }

 private:
  Streams& streams_;
  List<Block> from_, to_;
};

/// Sends and receives the messages of a program. Within this process a message is a copy on a
/// stream of the receiving GPU; to another process it is a send here and a receive there. In both
/// cases the rank that made the value continues at once, and waits only before it overwrites the
/// value.
class Messages {
 public:
  Messages(Streams& streams, Wires const& wires)
      : streams_(streams),
        values_(streams.machine(), wires),
        distributed_{streams.machine()},
        transfer_(streams) {}

  /// Prepares for a program, together with the other processes. @param places  [ranks]
  [[gnu::cold]] void load(std::vector<int> const& places) {
    auto const& program = streams_.machine().program();
    if (!streams_.gpus().reaches_all()) require_batch_in_reach(places);
    routes_ = Routes(program, places);
    values_.load(routes_);
    channel_ = streams_.gpus().connect(routes_.channels);
    read_.assign(routes_.slots, nullptr);
    freed_.assign(routes_.slots, false);
    shapes_ = FixedArray<ByteWriter>(
        processes() == nullptr ? 0 : static_cast<int>(routes_.all.size()) * program.microbatches);
  }
  [[nodiscard]] Routes const& routes() const noexcept { return routes_; }

  void begin_step() noexcept {
    std::fill(read_.begin(), read_.end(), nullptr);
    std::fill(freed_.begin(), freed_.end(), false);
  }

  /// Lets the stream of a rank wait for what an instruction needs.
  void await(stagger::detail::RankState& rank, std::size_t r, Instruction const& in) {
    std::size_t const gpu = streams_.gpu_of(r);
    streams_.use(gpu);
    for (unsigned n = in.waits; n != 0; --n, ++rank.wait)
      if (streams_.numbers().gpu(rank.wait->signal) == gpu)
        streams_.await(streams_.compute(r), rank.wait->signal, rank.wait->count - 1);
    if (in.op == Op::pass || routes_.all.empty()) return;
    auto const* one = &in;
    do {  // what it overwrites has been read
      for (unsigned g = 0; g < one->signal_count; ++g) {
        auto const number = routes_.route_of[one->signal[g]];
        if (number == Routes::none) continue;
        auto const* const read = read_[RouteValues::slot(routes_.all[number], in)];
        if (read != nullptr) streams_.wait(streams_.compute(r), *read);
      }
    } while (++one != rank.end && one->op == Op::pass);
  }

  /// Sends the messages and records the events that follow an instruction of a rank, of this
  /// process or another.
  void give(Issue const& issue, Instruction const& in) {
    for (unsigned g = 0; g < in.signal_count; ++g) {
      std::uint32_t const signal = in.signal[g];
      std::size_t const number = streams_.give(signal);
      auto const route = routes_.route_of[signal];
      if (route != Routes::none)
        send(route, in, number);
      else if (streams_.own(issue.rank))
        record(issue.rank, number);
    }
    if (routes_.all.empty() && routes_.owners.empty()) return;
    if (in.op == Op::hand_in) hand_in(issue.rank);
    if (!streams_.own(issue.rank)) return;
    if (routes_.last_uses[issue.rank][issue.index]) free_values(issue.rank, in);
    if (gathers_values(in.op)) free_rows(issue.rank, in);
  }

  /// Lets the stream of a rank wait for the gradients of other owners of its stages.
  void await_gradients(std::size_t rank) {
    for (std::size_t n = 0; n < routes_.owners.size(); ++n)
      if (routes_.owners[n].receiver == rank) streams_.wait(streams_.compute(rank), handed_in(n));
  }
  /// Likewise until its own gradients have been read, since they are set to zero.
  void await_handing_in(std::size_t rank) {
    for (std::size_t n = 0; n < routes_.owners.size(); ++n)
      if (routes_.owners[n].sender == rank) streams_.wait(streams_.compute(rank), handed_in(n));
  }

  /// Sends updated values to the other owners of a rank's stages.
  void send_values(std::size_t rank) {
    for (auto const& owner : routes_.owners) {
      if (owner.receiver != rank || !(streams_.own(rank) || streams_.own(owner.sender))) continue;
      transfer_.clear();
      distributed_.each_layer(owner.cell, [&](std::size_t l, GradientCopy* copy) {
        auto const values = distributed_.parameters(l).values();
        if (values.empty()) return;
        auto const apart = copy->values();  // none where the first owner is of another process
        transfer_.add(values, apart.empty() ? values : apart);
      });
      transfer_.follow(rank, channel_[owner.back]);
      transfer_.enqueue(channel_[owner.back]);
      count(rank, TrafficKind::parameters);
    }
  }

 private:
  /// Refuses members of a group that would read the batch in the memory of a GPU out of reach.
  [[gnu::cold]] void require_batch_in_reach(std::vector<int> const& places) const {
    auto const& cells = streams_.machine().program().cells;
    auto const gpu_of = [&](Cell const& cell) { return *(places.begin() + cell.rank); };
    for (Cell const& own : cells) {
      bool const reads =
          (own.depth == 0 && !own.gathers_input) || (own.last() && !own.gathers_target);
      for (Cell const& first : cells)
        if (own.member != 0 && reads && first.member == 0 && first.depth == own.depth &&
            gpu_of(first) != gpu_of(own))
          raise(Errc::bad_configuration,
                "members of a group all read the batch, which lies on one GPU, but not all GPUs "
                "can read its memory; put the ranks of a group on one GPU by a placement, or take "
                "GPUs with peer access");
    }
  }
  [[nodiscard]] Processes* processes() const noexcept { return streams_.gpus().processes(); }
  [[nodiscard]] Channel const& channel(std::size_t number) const noexcept {
    return streams_.gpus().channels()[number];
  }
  void record(std::size_t rank, std::size_t event) const {
    streams_.record(streams_.compute(rank), streams_.event(streams_.gpu_of(rank), event));
  }
  /// Counts what a rank of this process has just sent to another process.
  void count(std::size_t rank, TrafficKind kind) const {
    if (processes() != nullptr && streams_.own(rank))
      streams_.machine().traffic.add_to_step(rank, kind, {1, transfer_.bytes()});
  }
  /// Records the event that the gradients of another owner have arrived and been read.
  [[nodiscard]] Event& handed_in(std::size_t owner) const noexcept {
    return streams_.event(channel(channel_[routes_.owners[owner].channel]).gpu,
                          streams_.numbers().owner(owner));
  }

  /// Called when a rank has read for the last time what it received for a microbatch.
  void free_values(std::size_t rank, Instruction const& in) {
    auto const free = [&](std::uint32_t number, std::size_t slot) {
      if (number != Routes::none) free_slot(rank, routes_.all[number].first_slot + slot);
    };
    free(routes_.route_into[in.cell], in.x);
    free(routes_.route_back_to[in.cell], in.dy);
  }
  /// Likewise for the rows that it has gathered.
  void free_rows(std::size_t rank, Instruction const& in) {
    for (auto const& route : routes_.all)
      if (values_.gathers(route, in)) free_slot(rank, RouteValues::slot(route, in));
  }
  void free_slot(std::size_t rank, std::size_t slot) {
    record(rank, streams_.numbers().slot(slot));
    freed_[slot] = true;
  }

  /// Sends a value that an instruction has just made.
  /// @param arrival  number of the event that the receiver waits for
  void send(std::uint32_t number, Instruction const& in, std::size_t arrival) {
    Route const& route = routes_.all[number];
    bool const gives = streams_.own(route.sender);
    bool const takes = streams_.own(route.receiver);
    if (!gives && !takes) return;
    std::size_t const channel_number = channel_[route.channel];
    Channel const& over = channel(channel_number);
    std::size_t const slot = RouteValues::slot(route, in);
    auto& passed = streams_.event(over.gpu, takes ? arrival : streams_.numbers().slot(slot));
    if (values_.empty(route, in)) {  // nothing to wait for
      if (takes) streams_.record(*over.stream, passed);
      return;
    }
    auto const& type = values_.wire(route.cell);
    transfer_.clear();
    header_.clear();
    if (gives) {
      streams_.use(streams_.gpu_of(route.sender));
      AtPlace const here(streams_.place_of(route.sender));
      void* const value = values_.given(route, in);
      type.write(header_, value);
      transfer_.add_given(type, value);
    }
    if (gives != takes) tell_shape(number, in, channel_number, gives);
    transfer_.follow(route.sender, channel_number);
    if (takes) {
      streams_.use(over.gpu);
      if (freed_[slot])
        streams_.wait(*over.stream, streams_.event(over.gpu, streams_.numbers().slot(slot)));
      AtPlace const here(streams_.place_of(route.receiver, *over.stream));
      ByteReader reader(header_.data(), header_.size());
      void* const copy = values_.taken(route, in);
      type.read(reader, copy);
      transfer_.add_taken(type, copy);
    }
    transfer_.enqueue(channel_number);
    count(route.sender, route.forward ? TrafficKind::activations : TrafficKind::gradients);
    streams_.record(*over.stream, passed);
    if (gives) read_[slot] = &passed;
  }

  /// Sends the part of a value that is not in device memory to another process, in the first step
  /// of a program or in every step.
  [[gnu::cold]] void tell_shape(std::uint32_t number, Instruction const& in, std::size_t over,
                                bool gives) {
    auto const microbatches = static_cast<std::uint32_t>(streams_.machine().program().microbatches);
    ByteWriter& known = shapes_[number * microbatches + in.microbatch];
    if (known.size() == 0 || values_.shapes_change()) {
      if (gives)
        processes()->send_now(over, header_);
      else
        processes()->receive_now(over, header_);
      known.clear();
      known.add(header_.data(), header_.size());
    } else if (!gives) {
      header_.add(known.data(), known.size());
    } else if (known.size() != header_.size() ||
               std::memcmp(known.data(), header_.data(), known.size()) != 0) {
      raise(Errc::bad_configuration, "what ", stagger::detail::describe(in),
            " makes has another shape than in the first step, which another process does not "
            "know; use microbatches of one shape, or set Gpus::shapes_change");
    }
  }

  /// Sends the gradients of a stage to its first owner.
  void hand_in(std::size_t rank) {
    for (std::size_t n = 0; n < routes_.owners.size(); ++n) {
      OwnerRoute const& owner = routes_.owners[n];
      if (owner.sender != rank || !(streams_.own(rank) || streams_.own(owner.receiver))) continue;
      transfer_.clear();
      distributed_.each_layer(owner.cell, [&](std::size_t, GradientCopy* copy) {
        if (copy->gradients().empty()) return;
        transfer_.add(copy->gradients(), copy->received());
      });
      transfer_.follow(rank, channel_[owner.channel]);
      transfer_.enqueue(channel_[owner.channel]);
      count(rank, TrafficKind::gradient_sums);
      streams_.record(*channel(channel_[owner.channel]).stream, handed_in(n));
    }
  }

  Streams& streams_;
  RouteValues values_;
  DistributedState distributed_;

  // Of the program.
  Routes routes_;
  List<std::size_t> channel_;      // [channels of the routes] number among those of the GPUs
  FixedArray<ByteWriter> shapes_;  // [routes][microbatches] that other processes know

  // Of the step.
  List<Event const*> read_;  // [slots] recorded when the sender's copy was read; null: not sent yet
  std::vector<bool> freed_;  // [slots] whether the receiver has said that it may be overwritten
  ByteWriter header_;
  Transfer transfer_;
};

}  // namespace stagger::cuda::detail
