// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Back end: every rank a stream of one of several GPUs, every message between two of them
/// a send and a receive of NCCL.

#include <algorithm>
#include <chrono>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <stagger/core/fixed_array.hpp>
#include <stagger/cuda/detail/caller.hpp>
#include <stagger/cuda/detail/jobs.hpp>
#include <stagger/cuda/detail/parameter_memory.hpp>
#include <stagger/cuda/detail/require.hpp>
#include <stagger/engine/backend.hpp>
#include <stagger/engine/islands.hpp>
#include <stagger/engine/stall.hpp>
#include <stagger/nccl/detail/fleet.hpp>
#include <stagger/nccl/detail/routes.hpp>
#include <stagger/nccl/wire.hpp>

namespace stagger::nccl {

/// Issues the instructions of all ranks of this process from one thread, in the order of
/// `detail::Routes`. After the first step of a program it makes no event, allocates nothing and
/// synchronises with nothing but the end of the step.
class GpusBackend {
 public:
  static constexpr bool timed = false;
  static constexpr bool enqueues = true;  // also the update of an optimizer that says so

  /// Meets the other GPUs.
  /// @throws Error  for a GPU that is not there, or named twice; deadline for those that do not
  ///                come
  template <class Device>
  [[gnu::cold]] GpusBackend(Device const& device, stagger::detail::Machine& machine, int places)
      : islands_{machine},
        machine_(machine),
        kernels_(device.kernels),
        wires_(device.wires),
        wire_count_(device.wire_count),
        fleet_(open(device, places)) {
    for (std::size_t g = 0; g < fleet_->size(); ++g)
      memories_->push_back(cuda::detail::parameter_memory((*fleet_)[g].device.index()));
    machine_.keep(memories_);
  }
  GpusBackend(GpusBackend const&) = delete;
  GpusBackend& operator=(GpusBackend const&) = delete;
  ~GpusBackend() {
    if (!stuck_) return;
    // The devices may still come to what they were given: it stays, and their memory too.
    cuda::detail::leave_behind(std::move(fleet_));
    cuda::detail::leave_behind(std::move(streams_));
    machine_.abandon_parameters();
    for (auto& memory : *memories_)
      memory.release = [](stagger::detail::ParameterMemory const&, void*) noexcept {};
  }

  /// Prepares for a program that the machine has loaded.
  [[gnu::cold]] void load(std::vector<int> const& place) {
    auto const& program = machine_.program();
    std::size_t const ranks = program.ranks.size();
    cuda::detail::require_runnable(machine_, kernels_);
    gpu_.clear();
    for (int const p : place) gpu_.push_back(fleet_->at(p));
    routes_ = detail::Routes(program, place);
    part_edges(program);
    for (std::size_t r = streams_->size(); r < ranks; ++r) {
      fleet_->select(gpu_[r]);
      streams_->emplace_back();
    }
    channel_ = fleet_->connect(routes_.channels());
    place_events(program);
    for (std::size_t c = 0; c < program.cells.size(); ++c)
      islands_.settle(c, &(*memories_)[gpu_[islands_.rank_of(c)]]);
    for (std::size_t g = 0; g < fleet_->size(); ++g) {
      fleet_->select(g);
      auto& gpu = (*fleet_)[g];
      gpu.iteration.load(machine_, kernels_);
      if (clips()) gpu.sums.resize({std::max<std::size_t>(1, machine_.parameter_count())});
    }
    at_.assign(ranks, 0);
  }

  /// Carries the step out that the machine has begun. Returns when every stream has, or when the
  /// devices did not move for the deadline.
  void drive() noexcept {
    try {
      begin_iteration();
      issue();
      launch_updates();
      join();
    } catch (...) {
      fail(std::current_exception());
      if (decided_) lose(std::current_exception());
    }
    if (broken_) fleet_->abort("the step has failed");
    drain();
    finish();
  }

  /// Runs the step on a thread of its own and then resumes `then` there.
  bool start(std::coroutine_handle<> then) {
    caller_.ask(then, [this] { drive(); });
    return true;
  }

  /// Ends the step with an error; what has not been enqueued yet is not. Any thread may call it.
  void fail(std::exception_ptr failure) noexcept { machine_.fail(std::move(failure)); }

 private:
  using Clock = std::chrono::steady_clock;
  using LayerParameters = stagger::detail::LayerParameters;
  struct Updating {
    stagger::detail::RankState* rank;
    Instruction const* in;
  };
  struct Block {  // of device memory
    void* data;
    std::size_t bytes;
  };
  static constexpr auto none = static_cast<std::size_t>(-1);

  template <class Device>
  [[nodiscard]] [[gnu::cold]] static std::shared_ptr<detail::Fleet> open(Device const& device,
                                                                         int places) {
    std::vector<int> devices = device.devices;
    if (devices.empty()) {
      devices.resize(static_cast<std::size_t>(places));
      std::iota(devices.begin(), devices.end(), 0);
    }
    devices.resize(static_cast<std::size_t>(places));
    for (std::size_t i = 0; i < devices.size(); ++i)
      for (std::size_t j = 0; j < i; ++j)
        if (devices[i] == devices[j])
          throw stagger::Error(Errc::bad_configuration,
                               text("GPU ", devices[i],
                                    " is named twice; name each once, and let a placement put "
                                    "several ranks on it"));
    return std::make_shared<detail::Fleet>(devices, 0, places,
                                           invite(0, [](std::span<std::byte>) {}), device.meet_s);
  }

  // --- a program

  [[nodiscard]] bool clips() const noexcept {
    return machine_.program().training && machine_.options().clip_norm.has_value();
  }

  [[gnu::cold]] void part_edges(Program const& program) {
    if (own_slots_.size() < program.cells.size())
      own_slots_ = FixedArray<stagger::detail::Islands::OwnSlots>(program.cells.size());
    for (auto const& lane : routes_.lanes()) {
      if (!lane.forward) continue;
      static_cast<void>(wire(lane.cell));
      islands_.part(lane.cell, own_slots_[lane.cell]);
    }
  }

  [[nodiscard]] detail::WireType const& wire(std::size_t cell) const {
    auto const& type = islands_.type_behind(cell);
    for (std::size_t i = 0; i < wire_count_; ++i)
      if (wires_[i].type == &type && wires_[i].write != nullptr) return wires_[i];
    int const stage = machine_.program().cells[cell].stage;
    throw stagger::Error(
        Errc::bad_configuration,
        text("the value between the stages ", stage, " and ", stage + 1,
             " cannot go to another GPU; make it a cuda::Tensor, give its type a member fields() "
             "that returns a std::tie of such, or specialise stagger::nccl::Wire for it"));
  }

  /// Events: those of signals where the taker waits; those of lanes and shares at both ends; one
  /// for each stream that a GPU's iteration forks to and joins.
  [[gnu::cold]] void place_events(Program const& program) {
    std::vector<std::size_t> used(fleet_->size());
    std::vector<std::size_t> gives(program.signals.size());
    for (auto const& rank : program.ranks)
      for (auto const& in : rank.code)
        for (unsigned g = 0; g < in.gives; ++g) ++gives[in.give[g]];
    signal_gpu_.clear();
    first_event_.clear();
    issued_.assign(gives.size(), 0);
    for (std::size_t s = 0; s < gives.size(); ++s) {
      auto const lane = routes_.lane_of(s);
      std::size_t const rank = lane != detail::Routes::none
                                   ? routes_.lanes()[lane].taker
                                   : static_cast<std::size_t>(program.signals[s].giver);
      signal_gpu_.push_back(gpu_[rank]);
      first_event_.push_back(used[gpu_[rank]]);
      used[gpu_[rank]] += gives[s];
    }
    route_events_ = *std::max_element(used.begin(), used.end());
    fences_ = route_events_ + routes_.events();
    made_ = fences_ + program.ranks.size() + 2 * fleet_->channels().size() + 1;
    given_.assign(routes_.events(), false);
    freed_.assign(routes_.events(), false);
    for (std::size_t g = 0; g < fleet_->size(); ++g) {
      fleet_->select(g);
      (*fleet_)[g].events.reserve(made_ + program.ranks.size());
    }
  }

  // --- an iteration

  void use(std::size_t gpu) {
    if (gpu == current_) return;
    fleet_->select(gpu);
    current_ = gpu;
  }
  [[nodiscard]] cuda::Stream const& compute(std::size_t rank) const noexcept {
    return (*streams_)[rank];
  }
  [[nodiscard]] cuda::Event& event(std::size_t gpu, std::size_t number) const noexcept {
    return (*fleet_)[gpu].events[number];
  }
  [[nodiscard]] cuda::Place place_of(std::size_t rank, cuda::Stream const& stream) const noexcept {
    auto const& gpu = (*fleet_)[gpu_[rank]];
    return {stream.get(), &gpu.pool, &gpu.iteration.place(rank)};
  }

  /// Streams of a GPU but its first.
  template <class Visit> void each_stream(std::size_t gpu, Visit visit) {
    std::size_t fence = fences_;
    for (std::size_t r = 0; r < gpu_.size(); ++r, ++fence)
      if (gpu_[r] == gpu) visit(compute(r), fence);
    for (auto const& channel : fleet_->channels())
      for (auto* const end : {channel.giver.get(), channel.taker.get()}) {
        if (end != nullptr && end->gpu == gpu) visit(end->stream, fence);
        ++fence;
      }
  }

  void begin_iteration() {
    decided_ = broken_ = false;
    updates_.clear();
    current_ = none;
    std::fill(issued_.begin(), issued_.end(), 0);
    std::fill(at_.begin(), at_.end(), 0);
    std::fill(given_.begin(), given_.end(), false);
    std::fill(freed_.begin(), freed_.end(), false);
    if (lost_)
      throw stagger::Error(Errc::device,
                           "the GPUs or their communicators were lost in an earlier step; make a "
                           "new pipeline");
    bool const record = machine_.options().record;
    for (std::size_t g = 0; g < fleet_->size(); ++g) {
      use(g);
      auto& gpu = (*fleet_)[g];
      gpu.iteration.send(machine_, gpu.home);
      if (clips())
        cuda::check(
            cudaMemsetAsync(gpu.sums.data(), 0, gpu.sums.size() * sizeof(double), gpu.home.get()),
            "clear sums of squares");
      if (record) gpu.timeline.begin(gpu.home);
      auto& begun = gpu.events[made_ - 1];
      gpu.home.record(begun);
      each_stream(g, [&](cuda::Stream const& stream, std::size_t) { stream.wait(begun); });
    }
  }

  void issue() {
    auto& ranks = machine_.ranks();
    for (auto const& turn : routes_.turns()) {
      if (machine_.failed()) return;
      auto& rank = ranks[turn.rank];
      Instruction const& in = rank.begin[turn.index];
      execute(rank, in);
      for (unsigned g = 0; g < in.gives; ++g) give(rank, in, in.give[g]);
      if (in.op == Op::hand_in) hand_in(turn.rank);
      if (in.op <= Op::recompute && routes_.ends_flight(turn.rank, turn.index))
        free_slots(turn.rank, in);
    }
  }

  void execute(stagger::detail::RankState& rank, Instruction const& in) {
    auto const r = static_cast<std::size_t>(rank.number);
    std::size_t const gpu = gpu_[r];
    cuda::Stream const& stream = compute(r);
    use(gpu);
    for (unsigned n = in.waits; n != 0; --n, ++rank.wait)
      if (signal_gpu_[rank.wait->signal] == gpu)
        stream.wait(event(gpu, first_event_[rank.wait->signal] + rank.wait->count - 1));
    for (unsigned g = 0; g < in.gives; ++g) {  // what it overwrites has been sent
      auto const number = routes_.lane_of(in.give[g]);
      if (number == detail::Routes::none) continue;
      std::size_t const at = event_of(routes_.lanes()[number], in);
      if (given_[at]) stream.wait(event(gpu, route_events_ + at));
    }
    if (in.op == Op::update) return updates_.push_back({&rank, &in});
    cuda::detail::AtPlace const here(place_of(r, stream));
    if (in.op == Op::finish) return finish_gradients(r, stream);
    if (in.op > Op::recompute) return machine_.execute_end(rank, in);
    if (!rank.record) return stagger::detail::run_compute(rank, in);
    (*fleet_)[gpu].timeline.action(rank, in, stream,
                                   [&] { stagger::detail::run_compute(rank, in); });
  }

  /// The number of a slot's event at either end of a lane.
  [[nodiscard]] static std::size_t event_of(detail::Lane const& lane, Instruction const& in) {
    return lane.first_event + (lane.forward ? in.y : in.dx);
  }

  void give(stagger::detail::RankState const& rank, Instruction const& in, std::uint32_t signal) {
    auto const r = static_cast<std::size_t>(rank.number);
    std::size_t const number = first_event_[signal] + issued_[signal]++;
    auto const lane = routes_.lane_of(signal);
    if (lane != detail::Routes::none) return send(routes_.lanes()[lane], in, number);
    compute(r).record(event(gpu_[r], number));
  }

  /// A rank has read, for the last time, what came for a microbatch.
  void free_slots(std::size_t rank, Instruction const& in) {
    auto const free = [&](std::uint32_t number, std::size_t slot) {
      if (number == detail::Routes::none) return;
      std::size_t const at = routes_.lanes()[number].first_event + slot;
      compute(rank).record(event(gpu_[rank], route_events_ + at));
      freed_[at] = true;
    };
    free(routes_.lane_into(in.cell), in.x);
    free(routes_.lane_back_to(in.cell), in.dy);
  }

  // --- messages

  /// The value that an instruction has just made, to its taker's slot.
  void send(detail::Lane const& lane, Instruction const& in, std::size_t arrival) {
    std::size_t const slot = lane.forward ? in.y : in.dx;
    std::size_t const at = event_of(lane, in);
    auto const& type = wire(lane.cell);
    void* const value = islands_.given(lane.cell, lane.forward, slot);
    void* const copy = islands_.taken(lane.cell, lane.forward, slot);
    header_.clear();
    type.write(header_, value);
    auto& channel = fleet_->channel(channel_[lane.channel]);
    follow(lane.giver, *channel.giver);
    use(channel.taker->gpu);
    if (freed_[at]) channel.taker->stream.wait(event(channel.taker->gpu, route_events_ + at));
    {
      cuda::detail::AtPlace const here(place_of(lane.taker, channel.taker->stream));
      ByteReader reader(header_.data(), header_.size());
      type.read(reader, copy);
    }
    collect(type, value, from_);
    collect(type, copy, to_);
    exchange(channel);
    channel.giver->stream.record(event(channel.giver->gpu, route_events_ + at));
    given_[at] = true;
    channel.taker->stream.record(event(channel.taker->gpu, arrival));
  }

  /// The channel goes on behind what a rank has been given so far.
  void follow(std::size_t rank, detail::ChannelEnd const& end) {
    use(end.gpu);
    auto& made = event(end.gpu, made_ + rank);
    compute(rank).record(made);
    end.stream.wait(made);
  }

  static void collect(detail::WireType const& type, void* value, std::vector<Block>& blocks) {
    blocks.clear();
    detail::BlockVisit visit{&blocks, [](void* self, void* data, std::size_t bytes) {
                               if (bytes != 0)
                                 static_cast<std::vector<Block>*>(self)->push_back({data, bytes});
                             }};
    type.blocks(value, visit);
  }

  /// Puts blocks `from_` to `to_` onto both streams of a channel, each side as one group.
  void exchange(detail::Fleet::Channel& channel) {
    if (from_.empty()) return;
    broken_ = true;  // until both sides have theirs
    current_ = none;
    {
      auto group = channel.giver->pair.group();
      for (auto const& block : from_)
        channel.giver->last = channel.giver->pair.send(
            group, std::span(static_cast<std::byte const*>(block.data), block.bytes), 1);
    }
    {
      auto group = channel.taker->pair.group();
      for (auto const& block : to_)
        channel.taker->last = channel.taker->pair.receive(
            group, std::span(static_cast<std::byte*>(block.data), block.bytes), 0);
    }
    on_streams_.clear();
    on_streams_.push_back(channel.giver->last.on_stream());
    on_streams_.push_back(channel.taker->last.on_stream());
    detail::wait_for_all(on_streams_, machine_.options().deadline_s);
    broken_ = false;
  }

  // --- the end of a step

  /// Gradients of a stage to its first owner.
  void hand_in(std::size_t rank) {
    for (auto const& share : routes_.shares()) {
      if (share.giver != rank) continue;
      auto& channel = fleet_->channel(channel_[share.channel]);
      follow(rank, *channel.giver);
      collect_shares(share, [](LayerParameters::Share const& s) {
        return std::pair(s.gradients(), s.received());
      });
      exchange(channel);
      channel.giver->stream.record(event(channel.giver->gpu, route_events_ + share.event));
      channel.taker->stream.record(event(channel.taker->gpu, route_events_ + share.event));
    }
  }

  template <class Ends> void collect_shares(detail::Share const& share, Ends ends) {
    from_.clear();
    to_.clear();
    islands_.each_layer(share.cell, [&](std::size_t, LayerParameters::Share* s) {
      auto const [from, to] = ends(*s);
      if (from.empty()) return;
      from_.push_back({from.data(), from.size()});
      to_.push_back({to.data(), to.size()});
    });
  }

  void finish_gradients(std::size_t rank, cuda::Stream const& stream) {
    for (auto const& share : routes_.shares())
      if (share.taker == rank) stream.wait(event(gpu_[rank], route_events_ + share.event));
    islands_.finish(rank, clips() ? (*fleet_)[gpu_[rank]].sums.data() : nullptr);
  }

  /// Whatever CUDA and NCCL may refuse comes before the updates.
  void launch_updates() {
    if (machine_.failed()) return;
    if (clips()) scale_gradients();
    for (std::size_t g = 0; g < fleet_->size(); ++g)
      cuda::check((*fleet_)[g].iteration.refused(), "change parameters");  // without a flush
    if (updates_.empty() || !machine_.commit()) return;
    decided_ = true;
    for (auto const& [rank, in] : updates_) {
      auto const r = static_cast<std::size_t>(rank->number);
      use(gpu_[r]);
      for (auto const& share : routes_.shares())  // they become zero
        if (share.giver == r) compute(r).wait(event(gpu_[r], route_events_ + share.event));
      {
        cuda::detail::AtPlace const here(place_of(r, compute(r)));
        machine_.execute_end(*rank, *in);
      }
      send_values(r);
    }
  }

  /// Updated values to the other owners of a rank's stages.
  void send_values(std::size_t rank) {
    for (auto const& share : routes_.shares()) {
      if (share.taker != rank) continue;
      auto& channel = fleet_->channel(channel_[share.back]);
      follow(rank, *channel.giver);
      from_.clear();
      to_.clear();
      islands_.each_layer(share.cell, [&](std::size_t l, LayerParameters::Share* s) {
        auto const values = islands_.parameters(l).values();
        if (values.empty()) return;
        from_.push_back({values.data(), values.size()});
        to_.push_back({s->values().data(), values.size()});
      });
      exchange(channel);
    }
  }

  /// The sums of squares of all GPUs, and from them the same scale on each. Every sum is of one GPU
  /// and 0 on the others, so that their order does not matter.
  void scale_gradients() {
    fleet_->worldwide.clear();
    for (std::size_t g = 0; g < fleet_->size(); ++g) {
      use(g);
      auto& gpu = (*fleet_)[g];
      for (std::size_t r = 0; r < gpu_.size(); ++r) {
        if (gpu_[r] != g) continue;
        compute(r).record(gpu.events[fences_ + r]);
        gpu.home.wait(gpu.events[fences_ + r]);
      }
    }
    broken_ = true;
    current_ = none;
    on_streams_.clear();
    for (std::size_t g = 0; g < fleet_->size(); ++g) {
      auto& gpu = (*fleet_)[g];
      fleet_->worldwide.push_back(gpu.world.all_reduce(std::span(gpu.sums.data(), gpu.sums.size()),
                                                       collective::Reduction::sum));
      on_streams_.push_back(fleet_->worldwide.back().on_stream());
    }
    detail::wait_for_all(on_streams_, machine_.options().deadline_s);
    broken_ = false;
    for (std::size_t g = 0; g < fleet_->size(); ++g) {
      use(g);
      auto& gpu = (*fleet_)[g];
      auto& summed = gpu.events[made_ - 1];
      gpu.home.record(summed);
      for (std::size_t r = 0; r < gpu_.size(); ++r) {
        if (gpu_[r] != g) continue;
        compute(r).wait(summed);
        cuda::check(kernels_->scale(gpu.sums.data(), machine_.parameter_count(),
                                    *machine_.options().clip_norm, gpu.iteration.place(r).scale,
                                    compute(r).get()),
                    "find the scale of the gradients");
      }
    }
  }

  void join() {
    if (machine_.failed()) return;
    for (std::size_t g = 0; g < fleet_->size(); ++g) {
      use(g);
      auto& gpu = (*fleet_)[g];
      each_stream(g, [&](cuda::Stream const& stream, std::size_t fence) {
        stream.record(gpu.events[fence]);
        gpu.home.wait(gpu.events[fence]);
      });
      gpu.iteration.fetch(gpu.home);
    }
  }

  // --- waiting

  /// Waits for the devices, looking at them, at NCCL and at the deadline.
  void drain() noexcept {
    double const deadline_s = machine_.options().deadline_s;
    auto moved = Clock::now();
    std::uint64_t before = 0;
    bool aborted = broken_;
    for (auto const start = moved;;) {
      try {
        if (idle()) break;
        auto const now = Clock::now();
        if (now - start < std::chrono::microseconds(500)) {
          std::this_thread::yield();
          continue;
        }
        auto const since = std::chrono::duration<double>(now - moved).count();
        if (aborted && since > 0.5) {
          stuck_ = true;
          break;
        }
        if (!aborted) {
          fleet_->look();
          if (auto const progress = look(); progress != before) {
            before = progress;
            moved = now;
          } else if (since > deadline_s) {
            throw stagger::Error(Errc::deadline, stall_text());
          }
        }
      } catch (...) {
        bool const again = std::exchange(aborted, true);
        lose(std::current_exception());
        moved = Clock::now();
        fleet_->abort("the step has failed");
        if (again) {
          stuck_ = true;
          break;
        }
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    lost_ = lost_ || aborted;
  }

  /// @throws cuda::Error  what a device failed with
  [[nodiscard]] bool idle() {
    bool idle = true;
    for (std::size_t g = 0; g < fleet_->size(); ++g) {
      fleet_->select(g);
      idle = (*fleet_)[g].home.idle() && idle;
      each_stream(g,
                  [&](cuda::Stream const& stream, std::size_t) { idle = stream.idle() && idle; });
    }
    return idle;
  }

  /// How far the devices are, by the events of each rank in the order of its program.
  [[gnu::cold]] std::uint64_t look() {
    auto const& program = machine_.program();
    std::uint64_t sum = 0;
    std::vector<std::size_t> given(issued_.size());
    for (std::size_t r = 0; r < program.ranks.size(); ++r) {
      auto const& code = program.ranks[r].code;
      bool done = true;
      std::size_t i = 0;
      for (; i < code.size() && done; ++i)
        for (unsigned g = 0; g < code[i].gives && done; ++g) {
          std::size_t const signal = code[i].give[g];
          std::size_t const number = given[signal]++;
          done = number < issued_[signal] &&
                 event(signal_gpu_[signal], first_event_[signal] + number).done();
        }
      at_[r] = done ? i : i - 1;
      sum += at_[r];
    }
    return sum;
  }

  [[nodiscard]] [[gnu::cold]] std::string stall_text() const {
    auto const& program = machine_.program();
    std::vector<std::uint32_t> given(program.signals.size());
    for (std::size_t r = 0; r < program.ranks.size(); ++r)
      for (std::size_t i = 0; i < at_[r]; ++i)
        for (unsigned g = 0; g < program.ranks[r].code[i].gives; ++g)
          ++given[program.ranks[r].code[i].give[g]];
    return text("the GPUs did not move for ", machine_.options().deadline_s,
                " s: ", stagger::detail::describe_stall(program, at_, given),
                "; raise Options::deadline_s if an action may take that long");
  }

  /// Ends a step that may have been decided: parameters are lost.
  [[gnu::cold]] void lose(std::exception_ptr failure) noexcept {
    machine_.lose(std::move(failure));
    lost_ = true;
  }

  /// Losses, and what became of the parameters.
  [[gnu::cold]] void finish() noexcept {
    if (stuck_) return;
    try {
      if (machine_.failed()) {
        if (!lost_ || broken_) undo();
        return;
      }
      for (std::size_t g = 0; g < fleet_->size(); ++g)
        cuda::check((*fleet_)[g].iteration.refused(),
                    "change parameters of a step that was decided");
      take_results();
    } catch (...) {
      lose(std::current_exception());
    }
  }

  void undo() {
    current_ = none;
    for (std::size_t r = 0; r < gpu_.size(); ++r) {
      use(gpu_[r]);
      cuda::detail::AtPlace const here(place_of(r, compute(r)));
      islands_.undo(r);
    }
    while (!idle()) std::this_thread::yield();
  }

  void take_results() {
    double* const losses = machine_.ranks().front().arguments->losses;
    auto const microbatches = static_cast<std::size_t>(machine_.program().microbatches);
    bool first = true;
    for (std::size_t g = 0; g < fleet_->size(); ++g) {
      auto& gpu = (*fleet_)[g];
      fleet_->select(g);
      if (machine_.options().record) gpu.timeline.finish();
      double const* const here = gpu.iteration.losses();
      if (here == nullptr || losses == nullptr) continue;
      for (std::size_t m = 0; m < microbatches; ++m)
        losses[m] = first ? here[m] : losses[m] + here[m];
      first = false;
    }
    machine_.gradient_norm((*fleet_)[gpu_.front()].iteration.gradient_norm());
  }

  stagger::detail::Islands islands_;
  stagger::detail::Machine& machine_;
  cuda::ParameterKernels const* kernels_;
  detail::WireType const* wires_;
  std::size_t wire_count_;
  std::shared_ptr<detail::Fleet> fleet_;
  std::shared_ptr<std::vector<stagger::detail::ParameterMemory>> memories_ =
      std::make_shared<std::vector<stagger::detail::ParameterMemory>>();  // [GPUs]
  std::shared_ptr<std::vector<cuda::Stream>> streams_ =
      std::make_shared<std::vector<cuda::Stream>>();          // [ranks]
  FixedArray<stagger::detail::Islands::OwnSlots> own_slots_;  // [cells]

  // Of the program.
  detail::Routes routes_;
  std::vector<std::size_t> gpu_;          // [ranks] of this process
  std::vector<std::size_t> channel_;      // [channels of the routes] number in the fleet
  std::vector<std::size_t> signal_gpu_;   // [signals] whose table has the events
  std::vector<std::size_t> first_event_;  // [signals] there
  std::size_t route_events_ = 0;          // in every table, behind those of signals
  std::size_t fences_ = 0;                // likewise: of each stream, and of an iteration's start
  std::size_t made_ = 0;                  // likewise: of each rank

  // Of the step.
  std::vector<std::uint32_t> issued_;  // [signals]
  std::vector<bool> given_, freed_;    // [slots of lanes] whether their events count
  std::vector<Updating> updates_;      // in the order of issue
  ByteWriter header_;
  std::vector<Block> from_, to_;
  std::vector<Operation> on_streams_;
  std::vector<std::size_t> at_;  // [ranks] instructions that are known to be done
  std::size_t current_ = none;   // GPU that is selected
  bool decided_ = false;         // updates are under way
  bool broken_ = false;          // a message may be on one side only
  bool lost_ = false;            // no further step
  bool stuck_ = false;           // the devices may still be at it
  cuda::detail::Caller caller_;
};

}  // namespace stagger::nccl
