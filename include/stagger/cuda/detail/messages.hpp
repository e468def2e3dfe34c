// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The messages of a program between GPUs, and what waits for them: the values between
///         stages, those of a stage with several owners, and the rows that replicas predict.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include <stagger/core/fixed_array.hpp>
#include <stagger/core/portable.hpp>
#include <stagger/cuda/detail/distributed_state.hpp>
#include <stagger/cuda/detail/route_values.hpp>
#include <stagger/cuda/detail/routes.hpp>
#include <stagger/cuda/detail/streams.hpp>
#include <stagger/cuda/wire.hpp>
#include <stagger/engine/replica_run.hpp>
#include <stagger/program/describe.hpp>

namespace stagger::cuda::detail {

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

/// The parts of values that are not in device memory, such as their shapes, as far as the process
/// that receives the values knows them. They are sent in the first step of a program that has the
/// message, or in every step.
class KnownShapes {
 public:
  /// @param change  from step to step
  KnownShapes(Streams& streams, bool change) : streams_(streams), change_(change) {}

  /// Forgets all. @param messages  of a step
  [[gnu::cold]] void load(int messages) {
    known_ = FixedArray<ByteWriter>(processes() == nullptr ? 0 : messages);
  }

  /// Tells the shape of a message's value to the process that receives it, which makes the same
  /// call, if that does not know it.
  /// @param message  number in the step
  /// @param over     number of the channel
  /// @param header   of the value; at the receiver empty, and received
  /// @param in       the instruction that makes the value
  /// @throws Error  bad_configuration if the shape is not the known one
  [[gnu::cold]] void tell(std::size_t message, std::size_t over, bool gives, ByteWriter& header,
                          Instruction const& in) {
    ByteWriter& known = known_[message];
    if (known.size() == 0 || change_) {
      if (gives)
        processes()->send_now(over, header);
      else
        processes()->receive_now(over, header);
      known.clear();
      known.add(header.data(), header.size());
    } else if (!gives) {
      header.add(known.data(), known.size());
    } else if (known.size() != header.size() ||
               std::memcmp(known.data(), header.data(), known.size()) != 0) {
      raise(Errc::bad_configuration, "what ", stagger::detail::describe(in),
            " makes has another shape than in the first step, which another process does not "
            "know; use microbatches of one shape, or set Gpus::shapes_change");
    }
  }

 private:
  [[nodiscard]] Processes* processes() const noexcept { return streams_.gpus().processes(); }

  Streams& streams_;
  bool change_;
  FixedArray<ByteWriter> known_;  // [messages]
};

/// Each process that runs the last stage for a microbatch gets the rows of all its replicas. As
/// without replicas, other processes get nothing.
class PredictedRows {
 public:
  PredictedRows(Streams& streams, Wires const& wires)
      : streams_(streams),
        wires_(wires),
        shapes_(streams, wires.shapes_change),
        transfer_(streams) {}

  /// Prepares for a program, together with the other processes. @param places  [ranks]
  [[gnu::cold]] void load(std::vector<int> const& places) {
    messages_.clear();
    auto* const replicas = streams_.machine().run.replica_run;
    auto const& program = streams_.machine().program();
    if (replicas == nullptr || program.training || streams_.gpus().processes() == nullptr) return;
    replicas->elsewhere.assign(replicas->cells[0].rows.size(), true);
    std::vector<std::pair<int, int>> channels;
    for (std::size_t m = 0; m < replicas->elsewhere.size(); ++m) {
      std::vector<Made> all;
      for (std::size_t r = 0; r < replicas->ranks.size(); ++r)
        for (Instruction const& in : program.ranks[r].code)
          if (gives_output(in.op) && in.microbatch == m && program.cells[in.cell].last())
            all.push_back({r, places[r], &in});
      for (Made const& one : all) {
        if (streams_.own(one.rank)) replicas->elsewhere[m] = false;
        if (!replicas->ranks[one.rank].takes_target_rows) continue;  // one has all rows
        for (int const to : others(all, one.place)) {
          std::pair<int, int> const ends(one.place, to);
          std::size_t channel = 0;
          while (channel < channels.size() && channels[channel] != ends) ++channel;
          if (channel == channels.size()) channels.push_back(ends);
          messages_.push_back({one.rank, channel, one.in});
        }
      }
    }
    auto const numbers = streams_.gpus().connect(channels);
    for (Message& message : messages_) message.channel = numbers[message.channel];
    shapes_.load(static_cast<int>(messages_.size()));
  }

  /// @throws Error  bad_configuration for outputs that cannot be sent
  void require() const {
    if (messages_.size() != 0) static_cast<void>(wire());
  }

  /// Enqueues the messages of a prediction, after the actions of all ranks and in the same order in
  /// all processes.
  void exchange() {
    if (streams_.machine().arguments().outputs.first == nullptr) return;
    for (std::size_t n = 0; n < messages_.size(); ++n) {
      auto const& [rank, channel, in] = messages_[n];
      bool const gives = streams_.own(rank);
      auto const& over = streams_.gpus().channels()[channel];
      if (!over.stream) continue;  // between other processes
      auto const& type = wire();
      void* const rows = streams_.machine().run.replica_run->ranks[rank].outputs[in->microbatch];
      transfer_.clear();
      header_.clear();
      streams_.use(over.gpu);
      AtPlace const here(gives ? streams_.place_of(rank)
                               : streams_.place_of(streams_.first_on(over.gpu), *over.stream));
      if (gives) {
        type.write(header_, rows);
        transfer_.add_given(type, rows);
      }
      shapes_.tell(n, channel, gives, header_, *in);
      transfer_.follow(rank, channel);
      if (!gives) {
        ByteReader reader(header_.data(), header_.size());
        type.read(reader, rows);
        transfer_.add_taken(type, rows);
      }
      transfer_.enqueue(channel);
    }
  }

  /// Joins the rows in the caller's outputs, on one GPU, after the work of all GPUs.
  void join(std::size_t slot) const {
    auto& machine = streams_.machine();
    if (machine.arguments().outputs.first == nullptr || machine.options().replicas.empty() ||
        machine.failed())
      return;
    auto const& gpus = streams_.gpus();
    std::size_t rank = 0;
    while (!streams_.own(rank)) ++rank;
    std::size_t const own = streams_.gpu_of(rank);
    streams_.use(own);
    auto const& stream = gpus[own].main_stream;
    for (std::size_t g = 0; g < gpus.size(); ++g)
      if (g != own) streams_.wait(stream, streams_.end_of(slot, g));
    AtPlace const here(streams_.place_of(rank, stream));
    machine.settle_parts();
    streams_.record(stream, streams_.end_of(slot, own));
  }

 private:
  /// Rows of a microbatch that a rank predicts.
  struct Made {
    std::size_t rank;
    int place;
    Instruction const* in;
  };
  /// One of a step.
  struct Message {
    std::size_t rank;     ///< whose rows are sent
    std::size_t channel;  ///< its number
    Instruction const* in;
  };

  /// The other places where rows of a microbatch are made, each once.
  [[nodiscard]] static List<int> others(std::vector<Made> const& all, int own) {
    List<int> places;
    for (Made const& one : all)
      if (one.place != own && std::find(places.begin(), places.end(), one.place) == places.end())
        places.push_back(one.place);
    return places;
  }
  /// The functions that send the output of the last layer.
  [[nodiscard]] WireType const& wire() const {
    auto const& machine = streams_.machine();
    auto const& replicas = *machine.run.replica_run;
    auto const& layer = *machine.run.cells[replicas.ranks[messages_[0].rank].last_cell].back;
    return wire_of(wires_, *layer.ops->output, layer.number);
  }

  Streams& streams_;
  Wires wires_;
  List<Message> messages_;  // of a prediction, of all processes
  KnownShapes shapes_;      // [messages]
  ByteWriter header_;
  Transfer transfer_;
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
        shapes_(streams, wires.shapes_change),
        transfer_(streams),
        predicted_(streams, wires) {}

  /// Prepares for a program, together with the other processes. @param places  [ranks]
  [[gnu::cold]] void load(std::vector<int> const& places) {
    auto const& program = streams_.machine().program();
    if (!streams_.gpus().reaches_all()) require_batch_in_reach(places);
    routes_ = Routes(program, places);
    values_.load(routes_);
    channel_ = streams_.gpus().connect(routes_.channels);
    read_.assign(routes_.slots, nullptr);
    freed_.assign(routes_.slots, false);
    shapes_.load(static_cast<int>(routes_.all.size()) * program.microbatches);
    predicted_.load(places);
  }
  [[nodiscard]] Routes const& routes() const noexcept { return routes_; }
  [[nodiscard]] PredictedRows& predicted() noexcept { return predicted_; }

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
    if (gives != takes)
      shapes_.tell(number * static_cast<std::uint32_t>(streams_.machine().program().microbatches) +
                       in.microbatch,
                   channel_number, gives, header_, in);
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
  List<std::size_t> channel_;  // [channels of the routes] number among those of the GPUs
  KnownShapes shapes_;         // of messages: [routes][microbatches]

  // Of the step.
  List<Event const*> read_;  // [slots] recorded when the sender's copy was read; null: not sent yet
  std::vector<bool> freed_;  // [slots] whether the receiver has said that it may be overwritten
  ByteWriter header_;
  Transfer transfer_;

  PredictedRows predicted_;
};

}  // namespace stagger::cuda::detail
