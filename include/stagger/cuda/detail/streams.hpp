// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The GPUs of a process, the streams of a program on them, and the events that order them.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <stagger/core/list.hpp>
#include <stagger/cuda/detail/iteration.hpp>
#include <stagger/cuda/detail/processes.hpp>
#include <stagger/cuda/detail/routes.hpp>
#include <stagger/engine/machine.hpp>
#include <stagger/program/program.hpp>

namespace stagger::cuda::detail {

struct Gpu {
  explicit Gpu(int index) : device(select_device(index).index), pool(std::make_shared<Pool>()) {}

  int device;  // first: it is selected for all below
  std::shared_ptr<Pool> pool;
  Stream main_stream{Priority::message};  ///< an iteration begins and ends there
  std::unique_ptr<Stream> exchange;       ///< of a worker, with its parameter server
  std::vector<Event> events;
  Iteration iteration;
  Timeline timeline;
  Tensor<double> sums;  ///< [parameters] of the squares of gradients, then GradientScale::seen
};

/// The GPUs of this process, the channels for messages, and the groups that add up gradients.
/// Places are numbered over all processes.
class GpuSet {
 public:
  /// @param devices    GPUs of this process, none twice
  /// @throws Error     as select_device
  explicit GpuSet(std::span<int const> devices) {
    for (int const device : devices) gpus_.push_back(std::make_unique<Gpu>(device));
    for (auto& gpu : gpus_)
      for (auto const& other : gpus_)
        if (gpu != other) connect(*gpu, *other);
  }
  GpuSet(GpuSet const&) = delete;
  GpuSet& operator=(GpuSet const&) = delete;

  /// Sets the other processes, each with one GPU. @pre  size() == 1
  void join(std::unique_ptr<Processes> others) { processes_ = std::move(others); }
  /// Null: this process has all GPUs of the pipeline.
  [[nodiscard]] Processes* processes() const noexcept { return processes_.get(); }

  [[nodiscard]] std::size_t size() const noexcept { return gpus_.size(); }
  [[nodiscard]] Gpu& operator[](std::size_t gpu) const noexcept { return *gpus_[gpu]; }
  /// For error messages: "the GPU" or "the GPUs".
  [[nodiscard]] char const* name() const noexcept {
    return size() == 1 && !processes_ ? "the GPU" : "the GPUs";
  }
  /// The GPU of this process at a place; size(): another process has it.
  [[nodiscard]] std::size_t at(int number) const noexcept {
    if (processes_) return number == processes_->rank() ? 0 : size();
    return static_cast<std::size_t>(number);
  }

  /// Whether each GPU of this process can read the memory of all others.
  [[nodiscard]] bool reaches_all() const noexcept { return reaches_all_; }
  void select(std::size_t gpu) const { check(cudaSetDevice(gpus_[gpu]->device), "select a GPU"); }

  /// Enqueues a copy from one GPU's memory to another's.
  [[nodiscard]] cudaError_t copy(Block to, std::size_t to_gpu, void const* from,
                                 std::size_t from_gpu, cudaStream_t stream) const noexcept {
    if (reaches_all_)
      return cudaMemcpyAsync(to.data, from, to.bytes, cudaMemcpyDeviceToDevice, stream);
    return cudaMemcpyPeerAsync(to.data, gpus_[to_gpu]->device, from, gpus_[from_gpu]->device,
                               to.bytes, stream);
  }

  /// Makes the channels that do not exist yet, together with all other processes. If both places
  /// are in this process, the stream is on the receiving GPU.
  /// @return for each pair of places, the number of its channel
  [[gnu::cold]] List<std::size_t> connect(std::span<std::pair<int, int> const> wanted) {
    List<std::size_t> numbers;
    for (auto const& places : wanted) {
      std::size_t number = 0;
      while (number < channels_.size() && channels_[number].places != places) ++number;
      numbers.push_back(number);
      if (number != channels_.size()) continue;
      std::size_t gpu = at(places.second);
      if (gpu == size()) gpu = at(places.first);
      auto& channel = channels_.emplace_back(Channel{places, gpu});
      if (gpu == size()) continue;
      select(gpu);
      channel.stream = std::make_unique<Stream>(Priority::message);
    }
    if (processes_) processes_->connect(channels_);
    return numbers;
  }

  /// The same for groups.
  /// @param wanted  places of each, in the order in which they are added up
  /// @param fewest  members of a group that exchange parts
  [[gnu::cold]] List<std::size_t> connect(std::span<std::vector<int> const> wanted,
                                          std::size_t fewest) {
    List<std::size_t> numbers;
    for (auto const& places : wanted) {
      std::size_t number = 0;
      while (number < groups_.size() && groups_[number].places != places) ++number;
      numbers.push_back(number);
      if (number != groups_.size()) continue;
      auto& group = groups_.emplace_back(ReplicaGroup{places});
      for (std::size_t i = 0; i < places.size(); ++i) {
        if (at(places[i]) == size()) continue;
        select(at(places[i]));
        group.members.push_back(std::make_unique<Member>(at(places[i]), i));
      }
    }
    if (processes_) processes_->connect(groups_, fewest);
    return numbers;
  }

  [[nodiscard]] std::vector<Channel> const& channels() const noexcept { return channels_; }
  [[nodiscard]] std::vector<ReplicaGroup> const& groups() const noexcept { return groups_; }

  /// Delivers the times of a recorded step that is done.
  template <class Machine> [[gnu::cold]] void tell_times(Machine& machine) const {
    for (std::size_t g = 0; g < size(); ++g) {
      select(g);
      gpus_[g]->timeline.finish(machine);
    }
  }
  /// Copies the losses that kernels have computed to the host.
  /// @param losses  [replicas of the last stage][microbatches] overwritten
  void take_losses(std::size_t slot, double* losses) const noexcept {
    bool first = true;
    for (auto const& gpu : gpus_) {
      if (!processes_ && !gpu->iteration.has_losses()) continue;
      double const* const here = gpu->iteration.losses(slot);
      for (std::size_t m = 0; m < gpu->iteration.loss_count(); ++m)
        losses[m] = first ? here[m] : losses[m] + here[m];
      first = false;
    }
  }

 private:
  /// Lets one GPU access the memory of another, so that copies need not go through the host.
  [[gnu::cold]] void connect(Gpu& gpu, Gpu const& other) {
    check(cudaSetDevice(gpu.device), "select a GPU");
    if (!gpu.pool->share_with(other.device)) {
      reaches_all_ = false;
      return;
    }
    auto const result = cudaDeviceEnablePeerAccess(other.device, 0);
    if (result == cudaErrorPeerAccessAlreadyEnabled)
      static_cast<void>(cudaGetLastError());
    else
      check(result, "connect two GPUs");
  }

  std::vector<std::unique_ptr<Gpu>> gpus_;
  std::vector<Channel> channels_;
  std::vector<ReplicaGroup> groups_;
  bool reaches_all_ = true;               // each GPU the memory of all others
  std::unique_ptr<Processes> processes_;  // last: it uses all streams
};

/// Numbers of the events of one iteration in flight. First come the events of signals, one for each
/// time that a signal is given, in the table of the GPU that waits. Then, in the table of every
/// GPU, come those of the slots of routes, of owners, of each stream that an iteration forks to and
/// joins, of the start, of each rank, of each group of gradients, and of the end.
class EventNumbers {
 public:
  /// @param gpu      [ranks] GPU of this process, or `gpus` for a rank of another process
  /// @param streams  of channels and groups, and for the exchange with a server
  [[gnu::cold]] void load(Program const& program, Routes const& routes,
                          List<std::size_t> const& gpu, std::size_t gpus, std::size_t streams) {
    List<std::size_t> used(gpus + 1);
    List<std::size_t> gives(program.signals.size());
    for (auto const& rank : program.ranks)
      for (auto const& in : rank.code)
        for (unsigned g = 0; g < in.signal_count; ++g) ++gives[in.signal[g]];
    gpu_.clear();
    first_.clear();
    for (std::size_t s = 0; s < gives.size(); ++s) {
      auto const route = routes.route_of[s];
      SignalEnds const& ends = program.signals[s];
      int const giver = ends.sender == SignalEnds::outside ? ends.receiver : ends.sender;
      std::size_t const of = route != Routes::none ? gpu[routes.all[route].receiver] : gpu[giver];
      gpu_.push_back(of);
      first_.push_back(used[of]);
      used[of] += gives[s];
    }
    slots_ = *std::max_element(used.begin(), used.end());
    owners_ = slots_ + routes.slots;
    fences_ = owners_ + routes.owners.size();
    ranks_ = fences_ + program.ranks.size() + streams + 1;
    groups_ = ranks_ + program.ranks.size();
    count_ = groups_ + program.groups.size() + 1;
  }

  /// The GPU whose table has the events of a signal; the number of GPUs if it is in another
  /// process.
  [[nodiscard]] std::size_t gpu(std::size_t signal) const noexcept { return gpu_[signal]; }
  [[nodiscard]] std::size_t signals() const noexcept { return gpu_.size(); }
  /// @param time  how often it was given before
  [[nodiscard]] std::size_t signal(std::size_t signal, std::size_t time) const noexcept {
    return first_[signal] + time;
  }
  [[nodiscard]] std::size_t slot(std::size_t number) const noexcept { return slots_ + number; }
  [[nodiscard]] std::size_t owner(std::size_t number) const noexcept { return owners_ + number; }
  [[nodiscard]] std::size_t first_fence() const noexcept { return fences_; }
  [[nodiscard]] std::size_t start() const noexcept { return ranks_ - 1; }
  [[nodiscard]] std::size_t rank(std::size_t rank) const noexcept { return ranks_ + rank; }
  [[nodiscard]] std::size_t group(std::size_t group) const noexcept { return groups_ + group; }
  [[nodiscard]] std::size_t end() const noexcept { return count_ - 1; }
  [[nodiscard]] std::size_t count() const noexcept { return count_; }

 private:
  List<std::size_t> gpu_;    // [signals]
  List<std::size_t> first_;  // [signals]
  std::size_t slots_ = 0;    // the first of each kind
  std::size_t owners_ = 0;
  std::size_t fences_ = 0;
  std::size_t ranks_ = 0;
  std::size_t groups_ = 0;
  std::size_t count_ = 0;
};

/// A stream for each rank, besides those of channels and groups. Each iteration in flight has
/// events of its own, so that its progress can be queried while the host enqueues the next one.
class Streams {
 public:
  static constexpr std::size_t none = ~std::size_t{0};

  Streams(stagger::detail::Machine& machine, std::shared_ptr<GpuSet> gpus)
      : machine_(machine), gpus_(std::move(gpus)) {}

  /// Which GPU runs each rank. @param places  [ranks]
  [[gnu::cold]] void assign(std::vector<int> const& places) {
    gpu_.clear();
    for (int const at : places) gpu_.push_back(gpus_->at(at));
  }
  /// Prepares for a program whose channels are connected.
  /// @param slots  iterations that may be in flight
  [[gnu::cold]] void load(Routes const& routes, std::size_t slots) {
    auto const& program = machine_.program();
    for (std::size_t r = streams_->size(); r < gpu_.size(); ++r) {
      gpus_->select(own(r) ? gpu_[r] : 0);
      streams_->emplace_back(std::cmp_less(r, program.computing) ? Priority::compute
                                                                 : Priority::message);
    }
    std::size_t further = gpus_->channels().size();
    for (auto const& group : gpus_->groups()) further += group.members.size();
    numbers_.load(program, routes, gpu_, gpus_->size(), further + 1);
    issued_.assign(numbers_.signals(), 0);
    for (std::size_t g = 0; g < gpus_->size(); ++g) {
      gpus_->select(g);
      auto& events = (*gpus_)[g].events;
      events.resize(std::max(events.size(), slots * numbers_.count()));
    }
  }

  [[nodiscard]] stagger::detail::Machine& machine() const noexcept { return machine_; }
  [[nodiscard]] GpuSet& gpus() const noexcept { return *gpus_; }
  [[nodiscard]] std::size_t ranks() const noexcept { return gpu_.size(); }
  /// Whether a rank is in this process, and its GPU.
  [[nodiscard]] bool own(std::size_t rank) const noexcept { return gpu_[rank] != gpus_->size(); }
  [[nodiscard]] std::size_t gpu_of(std::size_t rank) const noexcept { return gpu_[rank]; }
  /// The first rank on a GPU; ranks(): there is none.
  [[nodiscard]] std::size_t first_on(std::size_t gpu) const noexcept {
    std::size_t rank = 0;
    while (rank < ranks() && gpu_[rank] != gpu) ++rank;
    return rank;
  }
  [[nodiscard]] Stream const& compute(std::size_t rank) const noexcept { return (*streams_)[rank]; }
  /// The stream for the work of a rank: its own, or another one of its GPU.
  [[nodiscard]] Place place_of(std::size_t rank) const noexcept {
    return place_of(rank, compute(rank));
  }
  [[nodiscard]] Place place_of(std::size_t rank, Stream const& stream) const noexcept {
    auto const& gpu = (*gpus_)[gpu_[rank]];
    return {stream.get(), &gpu.pool, &gpu.iteration.place(rank)};
  }
  /// The same for an instruction, which may be the update of a stage alone.
  [[nodiscard]] Place place_of(std::size_t rank, Instruction const& in) const noexcept {
    Place here = place_of(rank);
    if (in.op == Op::apply) here.step = &(*gpus_)[gpu_[rank]].iteration.pass(rank);
    return here;
  }
  /// Shared, since a device may still use them when this object is destroyed.
  [[nodiscard]] std::shared_ptr<std::vector<Stream>> const& streams() const noexcept {
    return streams_;
  }

  void begin_step(std::size_t slot) noexcept {
    current_ = none;
    slot_ = slot;
    insists_ = false;
    std::fill(issued_.begin(), issued_.end(), 0);
  }
  /// From now on the step is decided: a call that CUDA refuses is made once more.
  void insist() noexcept { insists_ = true; }

  /// Makes a call; repeats it once if it is refused and the step is decided.
  template <class Call> void ask(Call call, char const* what) const {
    cudaError_t result = call();
    if (result != cudaSuccess && insists_) {
      static_cast<void>(cudaGetLastError());
      result = call();
    }
    check(result, what);
  }
  /// Selects a GPU for the thread.
  void use(std::size_t gpu) {
    if (gpu == current_) return;
    ask([&] { return cudaSetDevice((*gpus_)[gpu].device); }, "select a GPU");
    current_ = gpu;
  }
  void record(Stream const& stream, Event& event) const {
    ask([&] { return cudaEventRecord(event.get(), stream.get()); }, "record an event");
  }
  void wait(Stream const& stream, Event const& event) const {
    ask([&] { return cudaStreamWaitEvent(stream.get(), event.get(), 0); },
        "let a stream wait for an event");
  }

  /// Lets all streams wait for the work that was enqueued on the first stream of their GPU.
  void fork() {
    for (std::size_t g = 0; g < gpus_->size(); ++g) {
      use(g);
      auto& begun = event(g, numbers_.start());
      record((*gpus_)[g].main_stream, begun);
      each_stream(g, [&](Stream const& stream, std::size_t) { wait(stream, begun); });
    }
  }
  /// Lets the first stream of each GPU wait for all others, and for the messages that this process
  /// sends from the GPU, whose streams are on the receiving GPUs.
  void join() {
    for (std::size_t g = 0; g < gpus_->size(); ++g) {
      use(g);
      each_stream(g, [&](Stream const& stream, std::size_t fence) {
        record(stream, event(g, fence));
        wait((*gpus_)[g].main_stream, event(g, fence));
      });
    }
    std::size_t fence = numbers_.first_fence() + ranks();
    for (auto const& channel : gpus_->channels()) {
      std::size_t const from = gpus_->at(channel.places.first);
      if (channel.stream && from < gpus_->size() && from != channel.gpu) {
        use(from);
        wait((*gpus_)[from].main_stream, event(channel.gpu, fence));
      }
      ++fence;
    }
  }
  /// Lets the first stream of each GPU wait for that of another.
  void follow(std::size_t leader) {
    use(leader);
    record((*gpus_)[leader].main_stream, event(leader, numbers_.start()));
    for (std::size_t g = 0; g < gpus_->size(); ++g)
      if (g != leader) wait((*gpus_)[g].main_stream, event(leader, numbers_.start()));
  }

  /// Records the end of a GPU's part of an iteration on its first stream, after everything else.
  [[nodiscard]] Event& end_of(std::size_t slot, std::size_t gpu) const noexcept {
    return event(gpu, numbers_.end(), slot);
  }
  [[nodiscard]] Event& event(std::size_t gpu, std::size_t number) const noexcept {
    return event(gpu, number, slot_);
  }
  [[nodiscard]] EventNumbers const& numbers() const noexcept { return numbers_; }

  /// Gives a signal once more. @return the number of its event
  std::size_t give(std::size_t signal) noexcept {
    return numbers_.signal(signal, issued_[signal]++);
  }
  /// Lets a stream wait until a signal has been given for the `time`th time, counted from 0, if
  /// that is enqueued.
  void await(Stream const& stream, std::size_t signal, std::size_t time) const {
    if (issued_[signal] > time)
      wait(stream, event(numbers_.gpu(signal), numbers_.signal(signal, time)));
  }

  /// @throws Error the error of a device
  [[nodiscard]] bool idle() {
    bool idle = true;
    for (std::size_t g = 0; g < gpus_->size(); ++g) {
      gpus_->select(g);
      idle = (*gpus_)[g].main_stream.idle() && idle;
      each_stream(g, [&](Stream const& stream, std::size_t) { idle = stream.idle() && idle; });
    }
    current_ = none;
    return idle;
  }

  /// Finds the progress of the devices from the events of each rank, in the order of its program;
  /// for ranks of other processes, from what has arrived from them.
  /// @param at  [ranks] instructions that are known to be done. @return a sum of all
  [[gnu::cold]] std::uint64_t progress(std::size_t slot, std::vector<std::size_t>& at) const {
    auto const& program = machine_.program();
    std::uint64_t sum = 0;
    std::vector<std::size_t> given(issued_.size());
    at.assign(program.ranks.size(), 0);
    for (std::size_t r = 0; r < program.ranks.size(); ++r) {
      auto const& code = program.ranks[r].code;
      bool done = true;
      for (std::size_t i = 0; i < code.size() && done; ++i) {
        bool seen = false;  // an event after it
        for (unsigned g = 0; g < code[i].signal_count && done; ++g) {
          std::size_t const signal = code[i].signal[g];
          std::size_t const time = given[signal]++;
          if (numbers_.gpu(signal) == gpus_->size()) continue;
          seen = true;
          done = (slot != slot_ || time < issued_[signal]) &&
                 event(numbers_.gpu(signal), numbers_.signal(signal, time), slot).known_done();
        }
        if (done && seen) at[r] = i + 1;
      }
      sum += at[r];
    }
    return sum;
  }

 private:
  [[nodiscard]] Event& event(std::size_t gpu, std::size_t number, std::size_t slot) const noexcept {
    return (*gpus_)[gpu].events[slot * numbers_.count() + number];
  }

  /// The streams of a GPU except its first one, and the number of an event for each.
  template <class Visit> void each_stream(std::size_t gpu, Visit visit) const {
    std::size_t fence = numbers_.first_fence();
    for (std::size_t r = 0; r < gpu_.size(); ++r, ++fence)
      if (gpu_[r] == gpu) visit(compute(r), fence);
    for (auto const& channel : gpus_->channels()) {
      if (channel.stream && channel.gpu == gpu) visit(*channel.stream, fence);
      ++fence;
    }
    for (auto const& group : gpus_->groups())
      for (auto const& member : group.members) {
        if (member->gpu == gpu) visit(member->stream, fence);
        ++fence;
      }
    if (auto const& exchange = (*gpus_)[gpu].exchange) visit(*exchange, fence);
  }

  stagger::detail::Machine& machine_;
  std::shared_ptr<GpuSet> gpus_;
  std::shared_ptr<std::vector<Stream>> streams_ =
      std::make_shared<std::vector<Stream>>();  // [ranks]
  List<std::size_t> gpu_;  // [ranks] of this process; its number of GPUs: of another
  EventNumbers numbers_;
  std::size_t slot_ = 0;        // of the iteration that is being enqueued, or was last
  List<std::uint32_t> issued_;  // [signals] in this iteration
  std::size_t current_ = none;  // GPU that is selected
  bool insists_ = false;
};

}  // namespace stagger::cuda::detail
