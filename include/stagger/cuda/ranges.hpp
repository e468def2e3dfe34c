// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Named ranges around what the host enqueues, for a profiler: a pair of functions, so that
/// a program without ranges includes no header of a profiler.

#include <stagger/core/requirements.hpp>

namespace stagger::cuda {

/// The functions by which an engine announces the actions that it enqueues. `nvtx.hpp` has one for
/// NVIDIA's profilers.
struct Ranges {
  void (*begin)(char const* name) = nullptr;  ///< the name is valid only until it returns
  void (*end)() = nullptr;
};

namespace detail {

/// A range from its construction to its destruction.
class Range {
 public:
  Range(Ranges const& ranges, char const* name) : end_(ranges.end) { ranges.begin(name); }
  Range(Range const&) = delete;
  Range& operator=(Range const&) = delete;
  ~Range() { end_(); }

 private:
  void (*end_)();
};

}  // namespace detail

}  // namespace stagger::cuda
