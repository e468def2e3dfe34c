// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The streams, events and messages of a program that is spread over GPUs.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <stagger/core/fixed_array.hpp>
#include <stagger/core/portable.hpp>
#include <stagger/engine/distributed_state.hpp>
#include <stagger/nccl/detail/event_numbers.hpp>
#include <stagger/nccl/detail/gpu_set.hpp>
#include <stagger/nccl/detail/lane_ends.hpp>
#include <stagger/nccl/detail/messages.hpp>
#include <stagger/nccl/detail/routes.hpp>
#include <stagger/program/describe.hpp>

namespace stagger::nccl::detail {

/// Makes streams wait for each other, within a GPU by events, between two of them by messages.
class Links {
 public:
  static constexpr auto none = static_cast<std::size_t>(-1);

  Links(stagger::detail::Machine& machine, Wires const& wires, std::shared_ptr<GpuSet> gpu_set)
      : distributed_{machine},
        machine_(machine),
        ends_(machine, wires),
        gpu_set_(std::move(gpu_set)),
        messages_(*gpu_set_) {}

  /// Prepares for a program, together with the other processes.
  /// @param place  [ranks]
  /// @param turns  iterations that may be in flight, each with events of its own
  [[gnu::cold]] void load(std::vector<int> const& place, std::size_t turns) {
    auto const& program = machine_.program();
    gpu_.clear();
    for (int const p : place) gpu_.push_back(gpu_set_->at(p));
    routes_ = Routes(program, place);
    ends_.load(routes_);
    for (std::size_t r = streams_->size(); r < gpu_.size(); ++r) {
      gpu_set_->select(own(r) ? gpu_[r] : 0);
      streams_->emplace_back(r < static_cast<std::size_t>(program.computing)
                                 ? cuda::Priority::compute
                                 : cuda::Priority::message);
    }
    channel_ = gpu_set_->connect(routes_.channels());
    numbers_.load(program, routes_, gpu_, *gpu_set_);
    issued_.assign(numbers_.signals(), 0);
    given_.assign(routes_.events(), false);
    freed_.assign(routes_.events(), false);
    for (std::size_t g = 0; g < gpu_set_->size(); ++g) {
      gpu_set_->select(g);
      (*gpu_set_)[g].events.reserve(turns * numbers_.of_turn());
    }
    shapes_ = FixedArray<ByteWriter>(gpu_set_->alone()
                                         ? 0
                                         : routes_.lanes().size() *
                                               static_cast<std::size_t>(program.microbatches));
  }

  [[nodiscard]] Routes const& routes() const noexcept { return routes_; }
  [[nodiscard]] stagger::detail::DistributedState const& distributed_state() const noexcept {
    return distributed_;
  }
  [[nodiscard]] std::size_t ranks() const noexcept { return gpu_.size(); }
  /// Whether a rank is of this process, and on which of its GPUs it runs.
  [[nodiscard]] bool own(std::size_t rank) const noexcept { return gpu_[rank] != gpu_set_->size(); }
  [[nodiscard]] std::size_t gpu_of(std::size_t rank) const noexcept { return gpu_[rank]; }
  [[nodiscard]] cuda::Stream const& compute(std::size_t rank) const noexcept {
    return (*streams_)[rank];
  }
  /// For a device that may still work on them.
  [[nodiscard]] std::shared_ptr<std::vector<cuda::Stream>> const& streams() const noexcept {
    return streams_;
  }
  /// Whether a message may be on one side only.
  [[nodiscard]] bool broken() const noexcept { return broken_; }

  void begin_step(std::size_t turn) noexcept {
    broken_ = false;
    current_ = none;
    turn_ = turn;
    std::fill(issued_.begin(), issued_.end(), 0);
    std::fill(given_.begin(), given_.end(), false);
    std::fill(freed_.begin(), freed_.end(), false);
  }

  /// Makes a GPU the thread's.
  void use(std::size_t gpu) {
    if (gpu == current_) return;
    gpu_set_->select(gpu);
    current_ = gpu;
  }
  [[nodiscard]] cuda::Place place_of(std::size_t rank) const noexcept {
    return place_of(rank, compute(rank));
  }

  /// All streams of a GPU go on behind what its first one has been given, and that behind them.
  void fork(std::size_t gpu) {
    use(gpu);
    auto& begun = event(gpu, numbers_.start());
    (*gpu_set_)[gpu].home.record(begun);
    each_stream(gpu, [&](cuda::Stream const& stream, std::size_t) { stream.wait(begun); });
  }
  void join(std::size_t gpu) {
    use(gpu);
    each_stream(gpu, [&](cuda::Stream const& stream, std::size_t fence) {
      stream.record(event(gpu, fence));
      (*gpu_set_)[gpu].home.wait(event(gpu, fence));
    });
  }
  /// Of a GPU's part of an iteration: recorded on its first stream, behind all else.
  [[nodiscard]] cuda::Event& end_of(std::size_t turn, std::size_t gpu) const noexcept {
    return event(gpu, numbers_.end(), turn);
  }

  /// The stream of a rank waits for what an instruction needs.
  void await(stagger::detail::RankState& rank, Instruction const& in) {
    auto const r = static_cast<std::size_t>(rank.number);
    std::size_t const gpu = gpu_[r];
    use(gpu);
    for (unsigned n = in.waits; n != 0; --n, ++rank.wait)
      if (numbers_.gpu(rank.wait->signal) == gpu)
        compute(r).wait(event(gpu, numbers_.signal(rank.wait->signal, rank.wait->count - 1)));
    if (in.op == Op::pass) return;
    auto const* one = &in;
    do {  // what it overwrites has been sent
      for (unsigned g = 0; g < one->gives; ++g) {
        auto const number = routes_.lane_of(one->give[g]);
        if (number == Routes::none) continue;
        std::size_t const at = event_of(routes_.lanes()[number], in);
        if (given_[at]) compute(r).wait(event(gpu, numbers_.route(at)));
      }
    } while (++one != rank.end && one->op == Op::pass);
  }

  /// What follows from an instruction of a rank of any process.
  void give(std::size_t rank, std::size_t index, Instruction const& in) {
    for (unsigned g = 0; g < in.gives; ++g) {
      std::uint32_t const signal = in.give[g];
      std::size_t const number = numbers_.signal(signal, issued_[signal]++);
      auto const lane = routes_.lane_of(signal);
      if (lane != Routes::none)
        send(lane, in, number);
      else if (own(rank))
        compute(rank).record(event(gpu_[rank], number));
    }
    if (in.op == Op::hand_in) hand_in(rank);
    if (own(rank) && routes_.ends_flight(rank, index)) free_slots(rank, in);
    if (own(rank) && (in.op == Op::gather_input || in.op == Op::gather_gradient))
      free_rows(rank, in);
  }

  /// The stream of a rank waits for the gradients of other owners of its stages.
  void await_gradients(std::size_t rank) {
    for (auto const& share : routes_.shares())
      if (share.taker == rank) compute(rank).wait(event(gpu_[rank], numbers_.route(share.event)));
  }
  /// And until its own have been sent.
  void await_handing_in(std::size_t rank) {
    for (auto const& share : routes_.shares())
      if (share.giver == rank) compute(rank).wait(event(gpu_[rank], numbers_.route(share.event)));
  }

  /// Updated values to the other owners of a rank's stages.
  void send_values(std::size_t rank) {
    for (auto const& share : routes_.shares()) {
      if (share.taker != rank || !(own(rank) || own(share.giver))) continue;
      auto& channel = gpu_set_->channel(channel_[share.back]);
      if (own(rank)) follow(rank, *channel.giver);
      from_.clear();
      to_.clear();
      distributed_.each_layer(share.cell, [&](std::size_t l, LayerParameters::Share* s) {
        auto const values = distributed_.parameters(l).values();
        if (values.empty()) return;
        from_.push_back({values.data(), values.size()});
        auto const apart = s->values();  // none where the first owner is of another process
        to_.push_back({apart.empty() ? values.data() : apart.data(), values.size()});
      });
      exchange(channel);
    }
  }

  /// Adds up one block of each GPU, on all of them, behind what their ranks have been given; ranks
  /// go on behind the sum.
  /// @param block  (Gpu&) -> std::span<double>
  template <class BlockOf> void sum_up(BlockOf block) {
    for (std::size_t g = 0; g < gpu_set_->size(); ++g) join(g);
    together([&] {
      gpu_set_->worldwide.clear();
      for (std::size_t g = 0; g < gpu_set_->size(); ++g) {
        auto& gpu = (*gpu_set_)[g];
        gpu_set_->worldwide.push_back(messages_.add(g, gpu.home, gpu.world, [&](auto& group) {
          return gpu.world.all_reduce(group, block(gpu), Reduction::sum);
        }));
      }
    });
    for (std::size_t g = 0; g < gpu_set_->size(); ++g) fork(g);
  }

  /// Has the GPUs of this process do at once what `ask()` gives to `messages()`.
  template <class Ask> void together(Ask ask) {
    broken_ = true;  // until all have theirs
    current_ = none;
    messages_.begin();
    ask();
    messages_.submit(machine_.options().deadline_s);
    broken_ = false;
  }
  [[nodiscard]] Messages& messages() noexcept { return messages_; }

  /// A stream of a GPU goes on behind the time that a signal was given for, counted from 0, if that
  /// is enqueued.
  void await(std::size_t gpu, cuda::Stream const& stream, std::size_t signal, std::size_t time) {
    if (issued_[signal] > time) stream.wait(event(gpu, numbers_.signal(signal, time)));
  }
  /// Behind the sum of a group of gradients.
  [[nodiscard]] cuda::Event& summed(std::size_t gpu, std::size_t group) const noexcept {
    return event(gpu, numbers_.sum(group));
  }

  /// @throws cuda::Error  what a device failed with
  [[nodiscard]] bool idle() {
    bool idle = true;
    for (std::size_t g = 0; g < gpu_set_->size(); ++g) {
      gpu_set_->select(g);
      idle = (*gpu_set_)[g].home.idle() && idle;
      each_stream(g,
                  [&](cuda::Stream const& stream, std::size_t) { idle = stream.idle() && idle; });
    }
    current_ = none;
    return idle;
  }

  /// How far the devices are, by the events of each rank in the order of its program: of ranks of
  /// other processes, by what has come from them.
  /// @param at  [ranks] instructions that are known to be done. @return a sum of all
  [[gnu::cold]] std::uint64_t look(std::size_t turn, std::vector<std::size_t>& at) {
    auto const& program = machine_.program();
    std::uint64_t sum = 0;
    std::vector<std::size_t> given(issued_.size());
    at.assign(program.ranks.size(), 0);
    for (std::size_t r = 0; r < program.ranks.size(); ++r) {
      auto const& code = program.ranks[r].code;
      bool done = true;
      for (std::size_t i = 0; i < code.size() && done; ++i) {
        bool seen = own(r);
        for (unsigned g = 0; g < code[i].gives && done; ++g) {
          std::size_t const signal = code[i].give[g];
          std::size_t const number = given[signal]++;
          if (numbers_.gpu(signal) == gpu_set_->size()) continue;
          seen = true;
          done = (turn != turn_ || number < issued_[signal]) &&
                 event(numbers_.gpu(signal), numbers_.signal(signal, number), turn).done();
        }
        if (done && seen) at[r] = i + 1;
      }
      sum += at[r];
    }
    return sum;
  }

 private:
  using LayerParameters = stagger::detail::LayerParameters;
  struct Block {  // of device memory
    void* data;
    std::size_t bytes;
  };

  [[nodiscard]] cuda::Event& event(std::size_t gpu, std::size_t number) const noexcept {
    return event(gpu, number, turn_);
  }
  [[nodiscard]] cuda::Event& event(std::size_t gpu, std::size_t number,
                                   std::size_t turn) const noexcept {
    return (*gpu_set_)[gpu].events[turn * numbers_.of_turn() + number];
  }
  [[nodiscard]] cuda::Place place_of(std::size_t rank, cuda::Stream const& stream) const noexcept {
    auto const& gpu = (*gpu_set_)[gpu_[rank]];
    return {stream.get(), &gpu.pool, &gpu.iteration.place(rank)};
  }

  /// Streams of a GPU but its first.
  template <class Visit> void each_stream(std::size_t gpu, Visit visit) {
    std::size_t fence = numbers_.first_fence();
    for (std::size_t r = 0; r < gpu_.size(); ++r, ++fence)
      if (gpu_[r] == gpu) visit(compute(r), fence);
    for (auto const& channel : gpu_set_->channels())
      for (auto* const end : {channel.giver.get(), channel.taker.get()}) {
        if (end != nullptr && end->gpu == gpu) visit(end->stream, fence);
        ++fence;
      }
    for (auto const& team : gpu_set_->teams)
      for (auto const& end : team.ends) {
        if (end->gpu == gpu) visit(end->stream, fence);
        ++fence;
      }
  }

  /// The number of a slot's event at either end of a lane.
  [[nodiscard]] static std::size_t event_of(Lane const& lane, Instruction const& in) {
    return lane.first_event + LaneEnds::slot(lane, in);
  }

  /// A rank has read, for the last time, what came for a microbatch.
  void free_slots(std::size_t rank, Instruction const& in) {
    auto const free = [&](std::uint32_t number, std::size_t slot) {
      if (number == Routes::none) return;
      std::size_t const at = routes_.lanes()[number].first_event + slot;
      compute(rank).record(event(gpu_[rank], numbers_.route(at)));
      freed_[at] = true;
    };
    free(routes_.lane_into(in.cell), in.x);
    free(routes_.lane_back_to(in.cell), in.dy);
  }
  /// And rows that came for it to gather.
  void free_rows(std::size_t rank, Instruction const& in) {
    for (auto const& lane : routes_.lanes()) {
      if (!ends_.gathers(lane, in)) continue;
      std::size_t const at = event_of(lane, in);
      compute(rank).record(event(gpu_[rank], numbers_.route(at)));
      freed_[at] = true;
    }
  }

  /// What a lane's giver sends.
  [[nodiscard]] void* give_rows(Lane const& lane, std::size_t number, Instruction const& in) {
    use(gpu_[lane.giver]);
    cuda::detail::AtPlace const here(place_of(lane.giver));
    return ends_.given(lane, number, in);
  }

  /// A value that an instruction has just made, to its taker's slot.
  void send(std::uint32_t number, Instruction const& in, std::size_t arrival) {
    Lane const& lane = routes_.lanes()[number];
    bool const gives = own(lane.giver);
    bool const takes = own(lane.taker);
    if (!gives && !takes) return;
    if (ends_.empty(lane, in)) {  // nothing to wait for
      auto& taker = gpu_set_->channel(channel_[lane.channel]).taker;
      if (takes) taker->stream.record(event(taker->gpu, arrival));
      return;
    }
    std::size_t const at = event_of(lane, in);
    auto const& type = ends_.wire(lane.cell);
    auto& channel = gpu_set_->channel(channel_[lane.channel]);
    header_.clear();
    from_.clear();
    to_.clear();
    void* const value = gives ? give_rows(lane, number, in) : nullptr;
    if (gives) type.write(header_, value);
    if (gives != takes) tell_shape(number, in, channel);
    if (gives) {
      follow(lane.giver, *channel.giver);
      collect(type, value, from_);
    }
    if (takes) {
      std::size_t const gpu = channel.taker->gpu;
      use(gpu);
      if (freed_[at]) channel.taker->stream.wait(event(gpu, numbers_.route(at)));
      cuda::detail::AtPlace const here(place_of(lane.taker, channel.taker->stream));
      ByteReader reader(header_.data(), header_.size());
      void* const copy = ends_.taken(lane, number, in);
      type.read(reader, copy);
      collect(type, copy, to_);
    }
    exchange(channel);
    if (gives) channel.giver->stream.record(event(channel.giver->gpu, numbers_.route(at)));
    if (takes) channel.taker->stream.record(event(channel.taker->gpu, arrival));
    given_[at] = gives;
  }

  /// All of a value but its device memory, to another process: in the first step of a program, or
  /// in each.
  [[gnu::cold]] void tell_shape(std::uint32_t lane, Instruction const& in,
                                GpuSet::Channel& channel) {
    ByteWriter& known =
        shapes_[lane * static_cast<std::size_t>(machine_.program().microbatches) + in.microbatch];
    bool const gives = channel.giver != nullptr;
    if (known.size() != 0 && !ends_.shapes_change()) {
      if (!gives) {
        header_.add(known.data(), known.size());
      } else if (known.size() != header_.size() ||
                 std::memcmp(known.data(), header_.data(), known.size()) != 0) {
        raise(Errc::bad_configuration, "what ", stagger::detail::describe(in),
              " makes has another shape than in the first step, which another process does not "
              "know; use microbatches of one shape, or set Gpus::shapes_change");
      }
      return;
    }
    broken_ = true;
    auto& end = gives ? *channel.giver : *channel.taker;
    use(end.gpu);
    end.tell(header_, gives, machine_.options().deadline_s);
    broken_ = false;
    current_ = none;
    known.clear();
    known.add(header_.data(), header_.size());
  }

  /// The channel goes on behind what a rank has been given so far.
  void follow(std::size_t rank, ChannelEnd const& end) {
    use(end.gpu);
    auto& made = event(end.gpu, numbers_.made(rank));
    compute(rank).record(made);
    end.stream.wait(made);
  }

  static void collect(WireType const& type, void* value, std::vector<Block>& blocks) {
    blocks.clear();
    BlockVisit visit{&blocks, [](void* self, void* data, std::size_t bytes) {
                       if (bytes != 0)
                         static_cast<std::vector<Block>*>(self)->push_back({data, bytes});
                     }};
    type.blocks(value, visit);
  }

  /// Puts blocks `from_` to `to_` onto the streams of a channel.
  void exchange(GpuSet::Channel& channel) {
    if (from_.empty() && to_.empty()) return;
    auto const add = [&](ChannelEnd& end, std::vector<Block> const& blocks, auto call) {
      end.last = messages_.add(end.gpu, end.stream, end.pair, [&](auto& group) {
        Operation last;
        for (auto const& block : blocks)
          last = call(group, std::span(static_cast<std::byte*>(block.data), block.bytes));
        return last;
      });
    };
    together([&] {
      if (auto* const end = channel.giver.get(); end != nullptr)
        add(*end, from_, [&](auto& group, auto block) { return end->pair.send(group, block, 1); });
      if (auto* const end = channel.taker.get(); end != nullptr)
        add(*end, to_, [&](auto& group, auto block) { return end->pair.receive(group, block, 0); });
    });
  }

  /// Gradients of a stage to its first owner.
  void hand_in(std::size_t rank) {
    for (auto const& share : routes_.shares()) {
      if (share.giver != rank || !(own(rank) || own(share.taker))) continue;
      auto& channel = gpu_set_->channel(channel_[share.channel]);
      if (own(rank)) follow(rank, *channel.giver);
      from_.clear();
      to_.clear();
      distributed_.each_layer(share.cell, [&](std::size_t, LayerParameters::Share* s) {
        if (s->gradients().empty()) return;
        from_.push_back({s->gradients().data(), s->gradients().size()});
        to_.push_back({s->received().data(), s->received().size()});
      });
      exchange(channel);
      for (auto* const end : {channel.giver.get(), channel.taker.get()})
        if (end != nullptr) end->stream.record(event(end->gpu, numbers_.route(share.event)));
    }
  }

  stagger::detail::DistributedState distributed_;
  stagger::detail::Machine& machine_;
  LaneEnds ends_;
  std::shared_ptr<GpuSet> gpu_set_;
  std::shared_ptr<std::vector<cuda::Stream>> streams_ =
      std::make_shared<std::vector<cuda::Stream>>();  // [ranks]

  // Of the program.
  Routes routes_;
  std::vector<std::size_t> gpu_;  // [ranks] of this process; its number of GPUs: of another
  std::vector<std::size_t>
      channel_;  // [channels of the routes] number among the channels of its GPUs
  EventNumbers numbers_;
  FixedArray<ByteWriter> shapes_;  // [lanes][microbatches] that other processes know

  // Of the step.
  std::size_t turn_ = 0;
  std::vector<std::uint32_t> issued_;  // [signals]
  std::vector<bool> given_, freed_;    // [slots of lanes] whether their events count
  ByteWriter header_;
  std::vector<Block> from_, to_;
  Messages messages_;
  std::size_t current_ = none;  // GPU that is selected
  bool broken_ = false;
};

}  // namespace stagger::nccl::detail
