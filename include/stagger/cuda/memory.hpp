// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A pool of device memory that keeps what it has, pinned host memory, and what a stage
/// finds on its thread.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <stagger/cuda/device.hpp>
#include <stagger/cuda/stream.hpp>

namespace stagger::cuda {

/// Device memory in stream order. What goes back is kept for the next taker as long as the pool
/// lives: nothing returns to the driver during a run, and no dependency between streams is made
/// up to reuse a block sooner.
class Pool {
 public:
  /// Of the calling thread's device.
  Pool() {
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    check(cudaGetDevice(&properties.location.id), "find the current GPU");
    check(cudaMemPoolCreate(&pool_, &properties), "create a memory pool");
    set(cudaMemPoolAttrReleaseThreshold, std::numeric_limits<std::uint64_t>::max());
    set(cudaMemPoolReuseAllowInternalDependencies, 0);
  }
  Pool(Pool const&) = delete;
  Pool& operator=(Pool const&) = delete;
  ~Pool() {
    for (void* const memory : kept_) static_cast<void>(cudaFreeAsync(memory, own_.get()));
    static_cast<void>(cudaMemPoolDestroy(pool_));
  }

  /// Memory for work that is enqueued on `stream` from now on.
  /// @throws Error  if there is no such memory, with what is free; while the stream is captured,
  ///                where CUDA would make the memory a part of the graph, which gives it out anew
  ///                in each launch
  [[nodiscard]] void* take(std::size_t bytes, cudaStream_t stream) {
    if (detail::is_captured(stream)) refuse(cudaErrorStreamCaptureUnsupported, bytes);
    void* memory = nullptr;
    cudaError_t const result = cudaMallocFromPoolAsync(&memory, bytes, pool_, stream);
    if (result != cudaSuccess) [[unlikely]]
      refuse(result, bytes);
    return memory;
  }

  /// Takes memory back, all work on which is done or comes before what `stream` is given next.
  /// While the stream is captured that ends the capture with an error, since a graph frees only
  /// what it has allocated.
  void give_back(void* memory, cudaStream_t stream) noexcept {
    if (detail::is_captured(stream)) return keep(memory);
    static_cast<void>(cudaFreeAsync(memory, stream));
  }
  /// Lets another GPU reach this memory, where the two are connected that closely.
  /// @return  whether they are
  [[gnu::cold]] bool share_with(int device) {
    int own = 0;
    int can = 0;
    check(cudaGetDevice(&own), "find the current GPU");
    check(cudaDeviceCanAccessPeer(&can, device, own), "see how two GPUs are connected");
    if (can == 0) return false;
    cudaMemAccessDesc access{};
    access.location.type = cudaMemLocationTypeDevice;
    access.location.id = device;
    access.flags = cudaMemAccessFlagsProtReadWrite;
    check(cudaMemPoolSetAccess(pool_, &access, 1), "share a memory pool");
    return true;
  }
  /// For memory that nothing works on any more.
  [[nodiscard]] cudaStream_t own_stream() const noexcept { return own_.get(); }

  [[noreturn]] [[gnu::cold]] static void refuse(cudaError_t result, std::size_t bytes) {
    if (result != cudaErrorMemoryAllocation) detail::fail(result, "allocate memory of the GPU");
    static_cast<void>(cudaGetLastError());
    std::size_t free = 0;
    std::size_t total = 0;
    static_cast<void>(cudaMemGetInfo(&free, &total));
    raise(result, "the GPU has no ", detail::mebibytes(bytes), " more: ", detail::mebibytes(free),
          " of ", detail::mebibytes(total), " are free, so a tensor of at most that fits; ",
          detail::remedy(result));
  }

 private:
  /// Earlier work on the memory may still be under way: it stays as long as the pool.
  [[gnu::cold]] void keep(void* memory) noexcept {
    detail::capture_is_corrupted = true;
    try {
      std::lock_guard const lock(mutex_);
      kept_.push_back(memory);
    } catch (...) {  // no memory: it stays for ever
    }
  }
  template <class V> void set(cudaMemPoolAttr attribute, V value) {
    std::conditional_t<std::is_same_v<V, int>, int, std::uint64_t> v = value;
    check(cudaMemPoolSetAttribute(pool_, attribute, &v), "set up a memory pool");
  }
  cudaMemPool_t pool_ = nullptr;
  Stream own_;
  std::mutex mutex_;
  std::vector<void*> kept_;
};

namespace detail {
struct StepPlace;
}

/// Where the calling thread's work goes just now: set while an engine calls a stage.
struct Place {
  cudaStream_t stream = nullptr;
  std::shared_ptr<Pool> const* pool = nullptr;
  detail::StepPlace const* step = nullptr;
};

namespace detail {
inline thread_local Place place;

/// Sets the place for as long as it lives.
class AtPlace {
 public:
  explicit AtPlace(Place const& here) noexcept : before_(std::exchange(place, here)) {}
  AtPlace(AtPlace const&) = delete;
  AtPlace& operator=(AtPlace const&) = delete;
  ~AtPlace() { place = before_; }

 private:
  Place before_;
};
}  // namespace detail

/// The stream on which a stage enqueues its kernels: that of the rank it is called for. The null
/// stream outside of a stage.
[[nodiscard]] inline cudaStream_t stream() noexcept { return detail::place.stream; }

/// Page-locked host memory that keeps its capacity: what goes to and from the device without a
/// detour.
template <class T> class Pinned {
  static_assert(std::is_trivially_copyable_v<T>,
                "stagger: pinned memory holds trivially copyable elements");

 public:
  Pinned() = default;
  explicit Pinned(std::size_t size) { resize(size); }
  Pinned(Pinned&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        capacity_(std::exchange(other.capacity_, 0)) {}
  Pinned& operator=(Pinned&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
    return *this;
  }
  ~Pinned() {
    if (data_ != nullptr) static_cast<void>(cudaFreeHost(data_));
  }

  /// Allocates only when more is needed than ever before; contents are then unspecified.
  void resize(std::size_t size) {
    if (size > capacity_) {
      if (size > std::numeric_limits<std::size_t>::max() / sizeof(T))
        throw std::bad_array_new_length();
      void* memory = nullptr;
      check(cudaMallocHost(&memory, size * sizeof(T)), "lock pages of host memory");
      if (data_ != nullptr) static_cast<void>(cudaFreeHost(data_));
      data_ = static_cast<T*>(memory);
      capacity_ = size;
    }
    size_ = size;
  }

  [[nodiscard]] T* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::span<T> span() const noexcept { return {data_, size_}; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return capacity_ * sizeof(T); }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

}  // namespace stagger::cuda
