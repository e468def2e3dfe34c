// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The request to a planner, and the error for a request that cannot be met.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <stagger/core/error.hpp>

namespace stagger::plan {

/// Bytes of parameters, gradients and optimizer state for each byte of parameters.
namespace memory_factor {
inline constexpr double sgd = 2;
inline constexpr double adam = 4;  ///< two moments
}  // namespace memory_factor

/// The run that a plan is made for.
struct Request {
  int batch = 0;       ///< samples of an iteration, >= 1
  int microbatch = 0;  ///< samples per device and microbatch; 0: the profile's batch
  double memory_factor = plan::memory_factor::adam;
  bool recompute = false;      ///< activation recomputation: keep only stage inputs
  std::vector<int> without{};  ///< devices that must not be used, such as lost ones
};

/// The resource that is missing if nothing fits.
enum class Resource : std::uint8_t {
  memory,   ///< bytes of a device
  samples,  ///< of the batch
  layers,   ///< of the model
};

/// Why a request cannot be met.
struct Shortage {
  Resource resource = Resource::memory;
  int layer = -1;        ///< numbered from 0; -1 if no single layer is the cause
  double needed = 0;     ///< bytes, samples or layers
  double available = 0;  ///< of the same
  std::string change{};  ///< nearest change of the request that can be planned; empty: none known
};

/// No plan satisfies the request. `what()` names layer, resource, numbers, and the nearest change
/// with which there is a plan.
class Infeasible : public Error {
 public:
  Infeasible(std::string const& sentence, Shortage shortage)
      : Error(Errc::bad_configuration, sentence), shortage_(std::move(shortage)) {}

  [[nodiscard]] Shortage const& shortage() const noexcept { return shortage_; }

 private:
  Shortage shortage_;
};

}  // namespace stagger::plan
