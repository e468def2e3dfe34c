// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A pool of device memory that reuses its blocks, pinned host memory, and the stream that
///         a stage finds on its thread.

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

/// Device memory in stream order. Returned blocks are kept for reuse as long as the pool exists:
/// nothing returns to the driver during a run, and no dependency between streams is added to reuse
/// a block sooner.
class Pool {
 public:
  /// A pool of the calling thread's device.
  Pool() {
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    check(cudaGetDevice(&properties.location.id), "find the current GPU");
    cudaMemPool_t made = nullptr;
    check(cudaMemPoolCreate(&made, &properties), "create a memory pool");
    pool_.reset(made);
    set(cudaMemPoolAttrReleaseThreshold, std::numeric_limits<std::uint64_t>::max());
    set(cudaMemPoolReuseAllowInternalDependencies, 0);
  }
  Pool(Pool const&) = delete;
  Pool& operator=(Pool const&) = delete;
  ~Pool() {
    for (void* const memory : kept_) static_cast<void>(cudaFreeAsync(memory, own_.get()));
  }

  /// Memory for work that is enqueued on `stream` from now on.
  /// @throws Error  if there is not enough memory, naming what is free; while the stream is being
  /// captured, since CUDA would make the memory a part of the graph, which allocates it again in
  /// each launch
  [[nodiscard]] void* take(std::size_t bytes, cudaStream_t stream) {
    if (detail::is_captured(stream)) refuse(cudaErrorStreamCaptureUnsupported, bytes);
    void* memory = nullptr;
    cudaError_t const result = cudaMallocFromPoolAsync(&memory, bytes, pool_.get(), stream);
    if (result != cudaSuccess) [[unlikely]]
      refuse(result, bytes);
    return memory;
  }

  /// Takes memory back. All work on it must be done, or be enqueued before the next work of
  /// `stream`. While the stream is being captured this ends the capture with an error, since a
  /// graph frees only what it has allocated.
  void give_back(void* memory, cudaStream_t stream) noexcept {
    if (detail::is_captured(stream)) return keep(memory);
    static_cast<void>(cudaFreeAsync(memory, stream));
  }
  /// Lets another GPU access this memory, if their connection allows that.
  /// @return  whether the other GPU can access it
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
    check(cudaMemPoolSetAccess(pool_.get(), &access, 1), "share a memory pool");
    return true;
  }
  /// For memory that is not in use any more.
  [[nodiscard]] cudaStream_t own_stream() const noexcept { return own_.get(); }

  [[noreturn]] [[gnu::cold]] static void refuse(cudaError_t result, std::size_t bytes) {
    if (result != cudaErrorMemoryAllocation) detail::fail(result, "allocate memory of the GPU");
    static_cast<void>(cudaGetLastError());
    std::size_t free = 0;
    std::size_t total = 0;
    static_cast<void>(cudaMemGetInfo(&free, &total));
    raise(result, "the GPU has no ", sized(bytes), " more: ", sized(free), " of ", sized(total),
          " are free, so a tensor of at most that fits; ", detail::remedy(result));
  }

 private:
  /// Earlier work may still use the memory, so it is kept as long as the pool.
  [[gnu::cold]] void keep(void* memory) noexcept {
    detail::capture_is_corrupted = true;
    try {
      std::lock_guard const lock(mutex_);
      kept_.push_back(memory);
    } catch (...) {  // no memory: it is never freed
    }
  }
  template <class V> void set(cudaMemPoolAttr attribute, V value) {
    check(cudaMemPoolSetAttribute(pool_.get(), attribute, &value), "set up a memory pool");
  }
  detail::Owned<cudaMemPool_t> pool_;
  Stream own_;
  std::mutex mutex_;
  std::vector<void*> kept_;
};

namespace detail {
struct StepPlace;
}

/// The stream for the calling thread's work, set while an engine calls a stage.
struct Place {
  cudaStream_t stream = nullptr;
  std::shared_ptr<Pool> const* pool = nullptr;
  detail::StepPlace const* step = nullptr;
};

namespace detail {

inline thread_local Place place;

/// Memory of a device.
struct Block {
  void* data = nullptr;
  std::size_t bytes = 0;
};

/// Sets the stream for as long as this object exists.
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

/// The stream on which a stage enqueues its kernels: that of the rank for which it is called.
/// Outside of a stage, the null stream.
[[nodiscard]] inline cudaStream_t stream() noexcept { return detail::place.stream; }

/// Page-locked host memory that keeps its capacity, for direct copies to and from the device.
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

  /// Allocates only if more is needed than ever before; contents are then unspecified.
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
