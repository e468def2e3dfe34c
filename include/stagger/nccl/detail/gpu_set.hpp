// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The GPUs of one process that play a pipeline, and the channels between them and those of
/// other processes.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <stagger/core/portable.hpp>
#include <stagger/cuda/detail/iteration.hpp>
#include <stagger/cuda/detail/timeline.hpp>
#include <stagger/cuda/memory.hpp>
#include <stagger/nccl/communicator.hpp>

namespace stagger::nccl::detail {

/// One GPU of this process.
struct Gpu {
  Gpu(int index, int at) : place(at), device(index), pool(std::make_shared<cuda::Pool>()) {}

  int place;
  Device device;  // first: it selects the GPU for all below
  std::shared_ptr<cuda::Pool> pool;
  cuda::Stream home{cuda::Priority::message};  // an iteration begins and ends there
  Communicator world;                          // on `home`
  cuda::EventTable events;
  cuda::detail::Iteration iteration;
  cuda::detail::Timeline timeline;
  cuda::Tensor<double> sums;  // [parameters] of squares
  bool captured = false;      // its streams are being captured
  bool has_message = false;   // there, with an event behind it
  cuda::Event message;
};

/// One end of a channel: a communicator of two, rank 0 gives and rank 1 takes.
struct ChannelEnd {
  explicit ChannelEnd(std::size_t of) : gpu(of) {}
  std::size_t gpu;
  cuda::Stream stream{cuda::Priority::message};
  Communicator pair;
  Operation last;
  cuda::Pinned<std::byte> words;  // for what is said beside values, to another process
  cuda::Tensor<std::byte> words_there;

  static constexpr std::size_t room = 1024;
  [[gnu::cold]] void make_room() {
    words.resize(room);
    words_there.resize({room});
  }

  /// Sends a few bytes, or receives as many, and waits for them. @pre  its GPU is selected
  [[gnu::cold]] void tell(ByteWriter& bytes, bool gives, double seconds) {
    std::uint64_t size = bytes.size();
    if (size + sizeof size > room)
      raise(Errc::bad_configuration, "a value for another process has ", size,
            " bytes beside its tensors; keep them below ", room - sizeof size);
    if (gives) {
      std::memcpy(words.data(), &size, sizeof size);
      std::memcpy(words.data() + sizeof size, bytes.data(), bytes.size());
      copy(words_there.data(), words.data(), cudaMemcpyHostToDevice);
    }
    {
      auto group = pair.group();
      std::span<std::byte> const all(words_there.data(), room);
      last = gives ? pair.send(group, all, 1) : pair.receive(group, all, 0);
    }
    last.wait(seconds);
    if (gives) return;
    copy(words.data(), words_there.data(), cudaMemcpyDeviceToHost);
    for (stagger::detail::Backoff backoff; !stream.idle(); backoff.pause()) {
    }
    std::memcpy(&size, words.data(), sizeof size);
    bytes.add(words.data() + sizeof size, std::min<std::size_t>(size, room - sizeof size));
  }

 private:
  void copy(void* to, void const* from, cudaMemcpyKind kind) const {
    cuda::check(cudaMemcpyAsync(to, from, room, kind, stream.get()), "copy a few words");
  }
};

/// What one GPU has of a team.
struct TeamEnd {
  explicit TeamEnd(std::size_t of) : gpu(of) {}
  std::size_t gpu;
  cuda::Stream stream{cuda::Priority::message};
  Communicator all;
  Operation last;
  cuda::Tensor<float> warm;
  cuda::Tensor<std::byte> taken;  // gradients of the others
};

/// GPUs that add up the gradients of a stage.
struct Team {
  std::vector<int> places;                       // in the order in which they are added up
  std::vector<std::unique_ptr<TeamEnd>> ends{};  // of this process
};

/// Waits for several operations, polling each: none may wait for its turn while it is another that
/// gets on.
/// @throws Error  as Operation::wait
inline void wait_for_all(std::span<Operation> operations, double seconds) {
  auto const start = std::chrono::steady_clock::now();
  for (stagger::detail::Backoff backoff;; backoff.pause()) {
    Operation* open = nullptr;
    for (auto& operation : operations)
      if (!operation.poll()) open = &operation;
    if (open == nullptr) return;
    if (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() >= seconds)
      open->expire(seconds);
  }
}

/// Ends communicators together with their other ranks, who name theirs in the same order. Where one
/// has failed, or the others do not come in time, all are aborted.
/// @pre  no step is in flight, and graphs that captured their calls are gone
[[gnu::cold]] inline void end_together(std::span<Communicator* const> all) noexcept {
  constexpr double farewell_s = 3;
  constexpr double abort_s = 1;
  try {
    std::vector<Operation> ends;
    if (std::all_of(all.begin(), all.end(), [](auto const* one) { return one->healthy(); }))
      for (auto* const one : all) ends.push_back(one->finalize());
    wait_for_all(ends, farewell_s);
    if (!ends.empty()) return;
  } catch (...) {  // others have failed, or are not there
  }
  auto const start = std::chrono::steady_clock::now();
  for (auto* const one : all) {
    try {
      one->abort("the others did not end theirs");
    } catch (...) {  // no memory for the reason: it ends with its owner
    }
  }
  for (auto const* const one : all)
    static_cast<void>(one->gone(
        abort_s - std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()));
}

/// What a pipeline has of NCCL.
class GpuSet {
 public:
  struct Channel {
    std::pair<int, int> places;  // from, to
    std::unique_ptr<ChannelEnd> giver;
    std::unique_ptr<ChannelEnd> taker;  // null: in another process
  };

  /// Meets the other GPUs.
  /// @param devices  [GPUs of this process], which are the places from `first` on
  /// @throws Error   deadline for those that do not come
  GpuSet(std::span<int const> devices, int first, int places, Invitation const& invitation,
         double meet_s)
      : meet_s_(meet_s) {
    std::vector<Operation> joins;
    for (std::size_t g = 0; g < devices.size(); ++g) {
      int const place = first + static_cast<int>(g);
      gpus_.push_back(std::make_unique<Gpu>(devices[g], place));
      Gpu& gpu = *gpus_.back();
      gpu.world = Communicator(gpu.device, invitation, places, place, gpu.home);
      joins.push_back(gpu.world.joined());
    }
    wait_for_all(joins, meet_s);
    for (std::size_t g = 0; g < devices.size(); ++g) {
      select(g);
      for (std::size_t other = 0; other < devices.size(); ++other)
        if (other != g) gpus_[g]->pool->share_with(devices[other]);
    }
  }
  GpuSet(GpuSet const&) = delete;
  GpuSet& operator=(GpuSet const&) = delete;
  ~GpuSet() {
    try {
      std::vector<Communicator*> all;
      for (auto& channel : channels_)
        for (auto* const end : {channel.giver.get(), channel.taker.get()})
          if (end != nullptr) all.push_back(&end->pair);
      for (auto& team : teams)
        for (auto& end : team.ends) all.push_back(&end->all);
      for (auto& gpu : gpus_) all.push_back(&gpu->world);
      end_together(all);
    } catch (...) {  // no memory: they are aborted one by one
    }
  }

  [[nodiscard]] std::size_t size() const noexcept { return gpus_.size(); }
  [[nodiscard]] Gpu& operator[](std::size_t gpu) const noexcept { return *gpus_[gpu]; }
  /// Whether there is no other process.
  [[nodiscard]] bool alone() const noexcept {
    return gpus_.front()->world.size() == static_cast<int>(size());
  }
  /// The GPU of this process at a place; size(): none.
  [[nodiscard]] std::size_t at(int place) const noexcept {
    int const gpu = place - gpus_.front()->place;
    return gpu >= 0 && gpu < static_cast<int>(size()) ? static_cast<std::size_t>(gpu) : size();
  }

  /// Makes those channels that are not there yet, together with all other processes, and the
  /// connections behind them, so that the first message allocates nothing.
  /// @return for each pair of places, the number of its channel
  [[gnu::cold]] std::vector<std::size_t> connect(std::span<std::pair<int, int> const> wanted) {
    std::vector<std::size_t> numbers;
    std::size_t const before = channels_.size();
    for (auto const& places : wanted) {
      std::size_t number = 0;
      while (number < channels_.size() && channels_[number].places != places) ++number;
      if (number == channels_.size()) channels_.push_back({places, nullptr, nullptr});
      numbers.push_back(number);
    }
    for (std::size_t open = before; open < channels_.size();) open = split_off(open);
    std::vector<Operation> operations;
    int peers[2] = {1, 0};
    for (std::size_t c = before; c < channels_.size(); ++c)
      for (auto* const end : {channels_[c].giver.get(), channels_[c].taker.get()})
        if (end != nullptr) {
          select(end->gpu);
          if (!alone()) end->make_room();
          operations.push_back(end->last = end->pair.connect({&peers[end->pair.rank()], 1}));
        }
    wait_for_all(operations, meet_s_);
    return numbers;
  }

  [[nodiscard]] Channel& channel(std::size_t number) noexcept { return channels_[number]; }
  [[nodiscard]] std::vector<Channel> const& channels() const noexcept { return channels_; }

  void select(std::size_t gpu) const {
    cuda::check(cudaSetDevice(gpus_[gpu]->device.index()), "select a GPU");
  }

  /// Looks for what NCCL has to say of messages under way.
  /// @throws Error  the first error of any communicator
  void look() {
    for (auto& channel : channels_)
      for (auto* const end : {channel.giver.get(), channel.taker.get()})
        if (end != nullptr && end->last.poll()) end->pair.check();
    for (auto& team : teams)
      for (auto& end : team.ends)
        if (end->last.poll()) end->all.check();
    for (auto& operation : worldwide) static_cast<void>(operation.poll());
    for (auto const& gpu : gpus_) gpu->world.check();
  }
  /// What came back of a turn from GPUs whose kernels compute losses.
  void take_losses(std::size_t turn, double* losses) const noexcept {
    bool first = true;
    for (auto const& gpu : gpus_) {
      if (alone() && !gpu->iteration.has_losses()) continue;
      double const* const here = gpu->iteration.losses(turn);
      for (std::size_t m = 0; m < gpu->iteration.loss_count(); ++m)
        losses[m] = first ? here[m] : losses[m] + here[m];
      first = false;
    }
  }
  /// While on, iterations go into a graph.
  void capturing(bool on) noexcept {
    for (auto const& gpu : gpus_) {
      gpu->device.capturing(on);
      gpu->captured = on;
      gpu->has_message = false;
    }
  }

  /// Ends all communicators. Does not block.
  void abort(char const* reason) noexcept {
    try {
      for (auto& channel : channels_)
        for (auto* const end : {channel.giver.get(), channel.taker.get()})
          if (end != nullptr) end->pair.abort(reason);
      for (auto& team : teams)
        for (auto& end : team.ends) end->all.abort(reason);
      for (auto& gpu : gpus_) gpu->world.abort(reason);
    } catch (...) {  // no memory for the reason: they end with the GPUs
    }
  }

  std::vector<Team> teams;           // see teams.hpp
  std::vector<Operation> worldwide;  // [GPUs] the last operation among all

 private:
  /// Splits as many channels off as do not share a place. @return the next one
  [[gnu::cold]] std::size_t split_off(std::size_t first) {
    std::vector<int> channel_of(static_cast<std::size_t>(gpus_.front()->world.size()), -1);
    std::size_t last = first;
    for (; last < channels_.size(); ++last) {
      auto& from = channel_of[static_cast<std::size_t>(channels_[last].places.first)];
      auto& to = channel_of[static_cast<std::size_t>(channels_[last].places.second)];
      if (from >= 0 || to >= 0) break;
      from = to = static_cast<int>(last);
    }
    std::vector<Operation> operations;
    for (std::size_t g = 0; g < gpus_.size(); ++g) {
      Gpu& gpu = *gpus_[g];
      int const number = channel_of[static_cast<std::size_t>(gpu.place)];
      select(g);
      if (number < 0) {
        Communicator none;
        operations.push_back(gpu.world.split(-1, 0, none));
        continue;
      }
      auto& channel = channels_[static_cast<std::size_t>(number)];
      bool const gives = channel.places.first == gpu.place;
      auto& end = gives ? channel.giver : channel.taker;
      end = std::make_unique<ChannelEnd>(g);
      operations.push_back(gpu.world.split(number, gives ? 0 : 1, end->pair, end->stream));
    }
    wait_for_all(operations, meet_s_);
    return last;
  }

  double meet_s_;
  std::vector<std::unique_ptr<Gpu>> gpus_;
  std::vector<Channel> channels_;
};

}  // namespace stagger::nccl::detail
