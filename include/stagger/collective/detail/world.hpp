// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What the ranks of an in-process communicator share.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <stagger/collective/detail/kernels.hpp>
#include <stagger/collective/steps.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/text.hpp>

namespace stagger::collective::detail {

enum class Call : std::uint8_t {
  send,
  receive,
  broadcast,
  all_reduce,
  reduce_scatter,
  all_gather,
  barrier,
  split
};

[[nodiscard]] constexpr char const* name(Call call) noexcept {
  constexpr char const* names[] = {"send",           "receive",    "broadcast", "all_reduce",
                                   "reduce_scatter", "all_gather", "barrier",   "split"};
  return names[static_cast<int>(call)];
}

/// What all ranks of a collective call, and both ends of a message, must agree on.
struct Descriptor {
  Call call = Call::barrier;
  Reduction reduction = Reduction::sum;
  AllReduce algorithm = AllReduce::slices;
  std::int32_t root = 0;
  std::uint64_t count = 0;
  ElementType const* type = nullptr;

  [[nodiscard]] bool agrees(Descriptor const& o) const noexcept {
    return call == o.call && reduction == o.reduction && algorithm == o.algorithm &&
           root == o.root && count == o.count && same_type(type, o.type);
  }
  [[nodiscard]] std::string text() const {
    constexpr char const* reductions[] = {"sum", "min", "max"};
    std::string s = name(call);
    if (type == nullptr) return s;
    s += stagger::text("(", type->text(), " x ", count);
    if (call == Call::broadcast) s += ", root " + std::to_string(root);
    if (call == Call::all_reduce || call == Call::reduce_scatter) {
      s += std::string(", ") + reductions[static_cast<int>(reduction)];
    }
    if (algorithm != AllReduce::slices) s += std::string(", ") + collective::name(algorithm);
    return s + ")";
  }
};

/// What one rank shows the others of one collective. Written by its rank alone.
///
/// `phase` counts up for ever: 2g + 1 = the rank's call of generation g stands here, 2g + 2 = it
/// has done its part and reads no other cell or buffer of this generation any more.
struct alignas(64) Cell {
  std::atomic<std::uint64_t> phase{0};
  Descriptor what{};
  void* data = nullptr;
  int color = 0;
  int key = 0;
};

/// Messages of one direction between two ranks; each counter has one writer.
struct Edge {
  static constexpr std::uint64_t room = 4;
  struct Message {
    Descriptor what{};
    void const* data = nullptr;
  };
  alignas(64) std::atomic<std::uint64_t> posted{0};  ///< messages shown by the sender
  Message messages[room];
  alignas(64) std::atomic<std::uint64_t> taken{0};  ///< messages the receiver is through with
};

/// What a rank tells of itself.
struct alignas(64) Standing {
  std::atomic<bool> touching{false};       ///< it reads or writes buffers of others right now
  std::atomic<bool> left{false};           ///< it starts nothing any more
  std::atomic<std::uint64_t> started{0};   ///< last call begun: 16 * (number + 1) + call; 0 = none
  std::atomic<std::uint64_t> finished{0};  ///< likewise, last call done
};

[[nodiscard]] inline std::string call_text(std::uint64_t packed) {
  if (packed == 0) return "nothing";
  return std::string(name(static_cast<Call>(packed % 16))) + " #" + std::to_string(packed / 16 - 1);
}

/// The shared half of a communicator.
///
/// Once something went wrong the world is *broken* for good, with one reason for all. The two-sided
/// rule that makes buffers safe: who touches a foreign buffer first raises `touching`, then looks
/// whether the world is broken; who gives a buffer back early first breaks the world, then waits
/// until nobody touches.
class World {
 public:
  static constexpr std::uint64_t depth = 8;  ///< collectives that can be under way at once
  static constexpr int most_ranks = 4096;

  explicit World(int ranks)
      : ranks_(check(ranks)),
        crowded_(static_cast<unsigned>(ranks) > std::thread::hardware_concurrency()),
        cells_(new Cell[depth * static_cast<std::size_t>(ranks)]),
        standing_(new Standing[static_cast<std::size_t>(ranks)]),
        edges_(new std::atomic<Edge*>[2 * static_cast<std::size_t>(ranks) *
                                      static_cast<std::size_t>(ranks)] {}) {}
  World(World const&) = delete;
  World& operator=(World const&) = delete;
  ~World() {
    for (std::size_t i = 0; i < 2 * n() * n(); ++i)
      delete edges_[i].load(std::memory_order_relaxed);
  }

  [[nodiscard]] int ranks() const noexcept { return ranks_; }
  /// Whether there are more ranks than cores: who waits leaves its core at once.
  [[nodiscard]] bool crowded() const noexcept { return crowded_; }
  [[nodiscard]] Cell& cell(std::uint64_t number, int rank) noexcept {
    return cells_[number % depth * n() + static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] Standing& standing(int rank) noexcept {
    return standing_[static_cast<std::size_t>(rank)];
  }

  /// The edge from one rank to another, made at first use; messages of collectives have edges of
  /// their own.
  [[nodiscard]] Edge& edge(int from, int to, bool inner) {
    auto& place = edges_[(inner ? n() * n() : 0) + static_cast<std::size_t>(from) * n() +
                         static_cast<std::size_t>(to)];
    Edge* edge = place.load(std::memory_order_acquire);
    if (edge != nullptr) return *edge;
    auto made = std::make_unique<Edge>();
    if (place.compare_exchange_strong(edge, made.get(), std::memory_order_acq_rel))
      return *made.release();
    return *edge;
  }

  /// 0 = sound, 1 = being broken, 2 = broken and the reason may be read.
  [[nodiscard]] int state() const noexcept { return state_.load(); }
  [[nodiscard]] bool anyone_left() const noexcept {
    return leavers_.load(std::memory_order_acquire) != 0;
  }
  void leave(int rank) noexcept {
    standing(rank).left.store(true, std::memory_order_release);
    leavers_.fetch_add(1, std::memory_order_acq_rel);
  }

  /// Breaks the world and all that were split from it; the first reason stays.
  void break_down(Errc code, int culprit, std::string reason) {
    int sound = 0;
    if (!state_.compare_exchange_strong(sound, 1)) return;
    code_ = code;
    culprit_ = culprit;
    reason_ = std::move(reason);
    state_.store(2);
    std::lock_guard const lock(children_mutex_);
    for (auto const& weak : children_) {
      if (auto const child = weak.lock()) child->break_down(code, -1, reason_);
    }
  }

  /// The error as `rank` sees it; the one that caused it by leaving was not failed by a peer.
  /// @pre  state() == 2
  [[nodiscard]] Error error(int rank, std::string const& operation) const {
    Errc const code = code_ == Errc::peer_failed && culprit_ == rank ? Errc::cancelled : code_;
    return Error(code, operation + " of rank " + std::to_string(rank) + " ended: " + reason_);
  }

  /// Runs `work`, which touches foreign buffers, unless the world is broken.
  template <class Work> bool touch(int rank, Work&& work) {
    auto& touching = standing(rank).touching;
    touching.store(true);
    bool const sound = state_.load() == 0;
    if (sound) work();
    touching.store(false, std::memory_order_release);
    return sound;
  }

  /// Waits until no other rank touches a buffer: at most for the block that one is copying right
  /// now.
  /// @pre  state() != 0
  void quiesce(int rank) noexcept {
    for (int r = 0; r < ranks_; ++r) {
      while (r != rank && standing(r).touching.load()) std::this_thread::yield();
    }
  }

  void adopt(std::shared_ptr<World> const& child) {
    {
      std::lock_guard const lock(children_mutex_);
      std::erase_if(children_, [](auto const& weak) { return weak.expired(); });
      children_.push_back(child);
    }
    if (state() == 2) child->break_down(code_, -1, reason_);
  }

 private:
  static int check(int ranks) {
    if (ranks >= 1 && ranks <= most_ranks) return ranks;
    throw Error(Errc::bad_configuration, "a communicator has 1 to " + std::to_string(most_ranks) +
                                             " ranks, not " + std::to_string(ranks));
  }
  [[nodiscard]] std::size_t n() const noexcept { return static_cast<std::size_t>(ranks_); }

  int ranks_;
  bool crowded_;
  std::unique_ptr<Cell[]> cells_;
  std::unique_ptr<Standing[]> standing_;
  std::unique_ptr<std::atomic<Edge*>[]> edges_;
  std::atomic<int> leavers_{0};
  std::atomic<int> state_{0};
  Errc code_ = Errc::peer_failed;
  int culprit_ = -1;
  std::string reason_;
  std::mutex children_mutex_;
  std::vector<std::weak_ptr<World>> children_;
};

}  // namespace stagger::collective::detail
