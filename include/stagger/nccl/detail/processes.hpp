// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The processes of a pipeline, each with one GPU, connected by NCCL.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <stagger/collective/handshake.hpp>
#include <stagger/core/backoff.hpp>
#include <stagger/cuda/detail/processes.hpp>
#include <stagger/cuda/detail/streams.hpp>
#include <stagger/nccl/communicator.hpp>

namespace stagger::nccl::detail {

/// Waits for several operations and polls all of them, since one may need progress of another.
/// @throws Error  as Operation::wait
inline void wait_for_all(std::span<Operation> operations, double seconds) {
  Operation* open = nullptr;
  auto const done = [&] {
    open = nullptr;
    for (auto& operation : operations)
      if (!operation.poll()) open = &operation;
    return open == nullptr;
  };
  if (!stagger::detail::wait_until(done, seconds)) open->expire(seconds);
}

/// Ends communicators together with their other ranks, which name them in the same order. If one
/// has failed, or the others do not arrive in time, all are aborted.
/// @pre no step is in flight, and graphs that captured their calls are destroyed
[[gnu::cold]] inline void end_together(std::span<Communicator* const> all) noexcept {
  constexpr double farewell_s = 3;
  constexpr double abort_s = 1;
  try {
    std::vector<Operation> ends;
    if (std::all_of(all.begin(), all.end(), [](auto const* one) { return one->healthy(); }))
      for (auto* const one : all) ends.push_back(one->finalize());
    wait_for_all(ends, farewell_s);
    if (!ends.empty()) return;
  } catch (...) {  // others have failed, or do not exist
  }
  stagger::detail::Backoff const aborting;
  for (auto* const one : all) one->abort("the others did not end theirs");
  for (auto const* const one : all) static_cast<void>(one->gone(abort_s - aborting.waited_s()));
}

/// Enqueues a copy between the host and a GPU.
inline void copy(void* to, void const* from, std::size_t bytes, cudaMemcpyKind kind,
                 cuda::Stream const& stream) {
  cuda::check(cudaMemcpyAsync(to, from, bytes, kind, stream.get()),
              "copy what processes tell each other");
}
/// Waits for the copies on a stream, before which all work is done.
inline void wait_for_copies(cuda::Stream const& stream) {
  for (stagger::detail::Backoff backoff; !stream.idle(); backoff.pause()) {
  }
}

/// Determines whether any process answers yes. It must not wait for a step in flight, so it has a
/// stream and a communicator of its own.
class Question {
 public:
  /// @throws Error deadline if the other processes do not ask as well
  [[gnu::cold]] Question(Communicator& world, int rank, double join_deadline_s) {
    world.split(0, rank, all_, &stream_).wait(join_deadline_s);
  }

  [[nodiscard]] Communicator& communicator() noexcept { return all_; }
  [[nodiscard]] bool idle() const { return stream_.idle(); }

  /// @throws Error deadline if others do not ask in time
  [[nodiscard]] bool ask(bool own, double deadline_s) {
    std::uint32_t& word = *word_.data();
    word = own ? 1 : 0;
    copy(there_.data(), &word, sizeof word, cudaMemcpyHostToDevice, stream_);
    auto asked = all_.all_reduce(std::span(there_.data(), 1), Reduction::max);
    asked.wait(deadline_s);
    copy(&word, there_.data(), sizeof word, cudaMemcpyDeviceToHost, stream_);
    if (!stagger::detail::wait_until([this] { return stream_.idle(); }, deadline_s))
      asked.expire(deadline_s);
    return word != 0;
  }

 private:
  cuda::Stream stream_{cuda::Priority::message};
  cuda::Pinned<std::uint32_t> word_{1};
  cuda::Tensor<std::uint32_t> there_{1};
  Communicator all_{};
};

/// The bytes of a value besides its tensors, and their number, as a message of fixed size.
class ByteMessage {
 public:
  /// Memory of the GPU from which it is sent, or into which it is received.
  [[nodiscard]] cuda::detail::Block block() {
    if (there_.size() != capacity) there_.resize({capacity});
    return {there_.data(), capacity};
  }
  /// @throws Error  bad_configuration for more than `capacity` bytes
  void put(ByteWriter const& bytes, cuda::Stream const& stream) {
    std::uint64_t const size = bytes.size();
    if (size + sizeof size > capacity)
      raise(Errc::bad_configuration, "a value for another process has ", size,
            " bytes beside its tensors; keep them below ", capacity - sizeof size);
    host_.resize(capacity);
    std::memcpy(host_.data(), &size, sizeof size);
    std::memcpy(host_.data() + sizeof size, bytes.data(), bytes.size());
    copy(block().data, host_.data(), capacity, cudaMemcpyHostToDevice, stream);
  }
  /// Called after the call that received it.
  void take(ByteWriter& bytes, cuda::Stream const& stream) {
    host_.resize(capacity);
    copy(host_.data(), there_.data(), capacity, cudaMemcpyDeviceToHost, stream);
    wait_for_copies(stream);
    std::uint64_t size = 0;
    std::memcpy(&size, host_.data(), sizeof size);
    bytes.add(host_.data() + sizeof size, std::min<std::size_t>(size, capacity - sizeof size));
  }

 private:
  static constexpr std::size_t capacity = 1024;

  cuda::Pinned<std::byte> host_;
  cuda::Tensor<std::byte> there_;
};

/// Every channel has a communicator of two ranks, and every replica group one of its members. NCCL
/// gets all calls from one thread in one order. The nodes of a graph, however, are ordered only by
/// their edges, and a GPU that has begun one message may have no capacity left for the one that its
/// peer has begun. So while a graph is recorded, each call depends on the previous one.
class Processes final : public cuda::detail::Processes {
 public:
  /// Connects with the other processes.
  /// @param join_deadline_s  for them to join, and for each new connection
  /// @param deadline_s  for each call in a step, and between steps
  /// @throws Error deadline for processes that do not arrive
  Processes(cuda::detail::Gpu& gpu, int rank, int size, Invitation const& invitation,
            double join_deadline_s, double deadline_s)
      : cuda::detail::Processes(rank, size),
        device_(gpu.device),
        main_stream_(gpu.main_stream),
        world_{Communicator(device_, invitation, size, rank, main_stream_), {}, &main_stream_},
        join_deadline_s_(join_deadline_s),
        deadline_s_(deadline_s) {
    world_.all.joined().wait(join_deadline_s);
  }
  ~Processes() override {
    try {
      std::vector<Communicator*> all;
      if (question_) all.push_back(&question_->communicator());
      each_end([&](End& end) { all.push_back(&end.all); });
      end_together(all);
    } catch (...) {  // no memory: they are aborted one by one
    }
  }

  void agree(std::span<collective::Fact const> facts) override {
    collective::agree(rank(), size(), facts, [this](std::span<std::byte> bytes) {
      on_device(bytes, [this](auto there) { return world_.all.all_gather(there); });
    });
  }
  void broadcast(cuda::detail::Block block, int root) override {
    select();
    world_.all.broadcast(span(block), root).wait(deadline_s_);
  }
  void add_up(std::span<double> numbers) override {
    on_device(numbers, [this](auto there) { return world_.all.all_reduce(there, Reduction::sum); });
  }

  void connect(std::span<cuda::detail::Channel const> channels) override {
    select();
    std::size_t const before = pairs_.size();
    while (pairs_.size() < channels.size()) split_off(channels);
    std::vector<Operation> operations;
    for (std::size_t c = before; c < pairs_.size(); ++c) {
      if (!pairs_[c]) continue;
      int const peer = 1 - pairs_[c]->all.rank();
      operations.push_back(pairs_[c]->last = pairs_[c]->all.connect({&peer, 1}));
    }
    wait_for_all(operations, join_deadline_s_);
  }

  void connect(std::span<cuda::detail::ReplicaGroup const> groups, std::size_t fewest) override {
    select();
    for (std::size_t g = groups_.size(); g < groups.size(); ++g) {
      groups_.emplace_back();
      if (groups[g].members.empty()) {
        join_none();
        continue;
      }
      auto const& member = *groups[g].members.front();
      auto& end = *(groups_.back() = std::make_unique<End>());
      end.stream = &member.stream;
      world_.all.split(0, static_cast<int>(member.number), end.all, end.stream)
          .wait(join_deadline_s_);
      if (warm_.empty()) warm_.resize({1});
      cuda::check(cudaMemsetAsync(warm_.data(), 0, sizeof(float), end.stream->get()),
                  "clear a number");
      end.last = end.all.all_reduce(std::span(warm_.data(), 1), Reduction::sum);
      end.last.wait(join_deadline_s_);
      if (std::cmp_less(end.all.size(), fewest)) continue;
      std::vector<int> peers;
      for (int r = 0; r < end.all.size(); ++r)
        if (r != end.all.rank()) peers.push_back(r);
      end.last = end.all.connect(peers);
      end.last.wait(join_deadline_s_);
    }
  }

  void send(std::size_t channel, std::span<cuda::detail::Block const> blocks) override {
    enqueue(*pairs_[channel], [&](End& end, auto& group) {
      for (auto const& block : blocks) end.last = end.all.send(group, span(block), 1);
    });
  }
  void receive(std::size_t channel, std::span<cuda::detail::Block const> blocks) override {
    enqueue(*pairs_[channel], [&](End& end, auto& group) {
      for (auto const& block : blocks) end.last = end.all.receive(group, span(block), 0);
    });
  }
  [[gnu::cold]] void send_now(std::size_t channel, ByteWriter const& bytes) override {
    select();
    End& end = *pairs_[channel];
    message_.put(bytes, *end.stream);
    auto const block = message_.block();
    send(channel, {&block, 1});
    end.last.wait(deadline_s_);
  }
  [[gnu::cold]] void receive_now(std::size_t channel, ByteWriter& bytes) override {
    select();
    End& end = *pairs_[channel];
    auto const block = message_.block();
    receive(channel, {&block, 1});
    end.last.wait(deadline_s_);
    message_.take(bytes, *end.stream);
  }

  void all_reduce(std::span<double> numbers) override {
    enqueue(world_, [&](End& end, auto& group) {
      end.last = end.all.all_reduce(group, numbers, Reduction::sum);
    });
  }
  void all_reduce(std::size_t group, std::span<cuda::detail::Summand const> summands) override {
    enqueue(*groups_[group], [&](End& end, auto& calls) {
      for (auto const& [data, size, type] : summands)
        if (type == ElementType::f32)
          end.last =
              end.all.all_reduce(calls, std::span(static_cast<float*>(data), size), Reduction::sum);
        else
          end.last = end.all.all_reduce(calls, std::span(static_cast<double*>(data), size),
                                        Reduction::sum);
    });
  }
  void exchange(std::size_t group, std::span<cuda::detail::Exchange const> exchanges) override {
    enqueue(*groups_[group], [&](End& end, auto& calls) {
      for (auto const& [peer, out, in] : exchanges) {
        if (out.bytes != 0) end.last = end.all.send(calls, span(out), static_cast<int>(peer));
        if (in.bytes != 0) end.last = end.all.receive(calls, span(in), static_cast<int>(peer));
      }
    });
  }

  void capturing(bool on) noexcept override {
    device_.capturing(on);
    captured_ = on;
    has_call_ = false;
  }
  [[nodiscard]] bool can_ask_any() const noexcept override { return question_ != nullptr; }
  [[gnu::cold]] void prepare_any() override {
    select();
    question_ = std::make_unique<Question>(world_.all, rank(), join_deadline_s_);
  }
  [[nodiscard]] bool any(bool own) override {
    select();
    return question_->ask(own, deadline_s_);
  }

  void check_failures() override {
    each_end([](End& end) {
      if (end.last.poll()) end.all.check();
    });
  }
  void abort() noexcept override {
    constexpr char const* reason = "the step has failed";
    each_end([](End& end) { end.all.abort(reason); });
    if (question_) question_->communicator().abort(reason);
  }
  [[nodiscard]] bool idle() const override { return !question_ || question_->idle(); }

 private:
  /// This process's end of a channel, of a group, or of the communicator of all.
  struct End {
    Communicator all{};
    Operation last{};
    cuda::Stream const* stream = nullptr;
  };
  static std::span<std::byte> span(cuda::detail::Block block) noexcept {
    return {static_cast<std::byte*>(block.data), block.bytes};
  }
  void select() const { cuda::check(cudaSetDevice(device_.index()), "select a GPU"); }

  template <class Visit> void each_end(Visit visit) {
    for (auto* const ends : {&pairs_, &groups_})
      for (auto& end : *ends)
        if (end) visit(*end);
    visit(world_);
  }

  /// Enqueues the calls that `call(end, group)` collects on the stream of an end.
  template <class Call> void enqueue(End& end, Call call) {
    if (captured_ && has_call_) end.stream->wait(call_);
    {
      auto group = end.all.group();
      call(end, group);
    }
    end.last.on_stream().wait(deadline_s_);
    if (!captured_) return;
    end.stream->record(call_);
    has_call_ = true;
  }

  /// Carries out a call on a copy of host memory, and copies the result back.
  template <class T, class Call> [[gnu::cold]] void on_device(std::span<T> host, Call call) {
    select();
    cuda::Tensor<T> there({host.size()});
    std::size_t const bytes = host.size_bytes();
    copy(there.data(), host.data(), bytes, cudaMemcpyHostToDevice, main_stream_);
    call(std::span<T>(there.data(), there.size())).wait(deadline_s_);
    copy(host.data(), there.data(), bytes, cudaMemcpyDeviceToHost, main_stream_);
    wait_for_copies(main_stream_);
  }

  void join_none() {
    Communicator none;
    world_.all.split(-1, 0, none).wait(join_deadline_s_);
  }
  /// Makes the communicators of as many channels at once as share no process.
  [[gnu::cold]] void split_off(std::span<cuda::detail::Channel const> channels) {
    std::vector<int> taken;
    auto const is_taken = [&](int place) {
      return std::find(taken.begin(), taken.end(), place) != taken.end();
    };
    std::optional<std::size_t> own;
    for (; pairs_.size() < channels.size(); pairs_.emplace_back()) {
      auto const [from, to] = channels[pairs_.size()].places;
      if (is_taken(from) || is_taken(to)) break;
      taken.insert(taken.end(), {from, to});
      if (from == rank() || to == rank()) own = pairs_.size();
    }
    if (!own) return join_none();
    auto const& channel = channels[*own];
    auto& end = *(pairs_[*own] = std::make_unique<End>());
    end.stream = channel.stream.get();
    world_.all
        .split(static_cast<int>(*own), channel.places.first == rank() ? 0 : 1, end.all, end.stream)
        .wait(join_deadline_s_);
  }

  Device device_;
  cuda::Stream const& main_stream_;
  End world_;
  double join_deadline_s_;
  double deadline_s_;
  std::vector<std::unique_ptr<End>> pairs_;   // [channels] null: of other processes
  std::vector<std::unique_ptr<End>> groups_;  // [groups] likewise
  std::unique_ptr<Question> question_;
  cuda::Tensor<float> warm_;  // for the first sum of a group, which makes NCCL's connections
  ByteMessage message_;
  bool captured_ = false;
  bool has_call_ = false;  // there, with an event after it
  cuda::Event call_;
};

}  // namespace stagger::nccl::detail
