// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The error that says why no plan is possible, and what would help.

#include <cstdint>
#include <string>
#include <utility>

#include <stagger/core/error.hpp>
#include <stagger/plan/workload.hpp>

namespace stagger::plan {

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

namespace detail {

/// "layer 24 ('fc6')".
[[gnu::cold]] [[nodiscard]] inline std::string layer_name(Workload const& w, int layer) {
  auto const& name = w.profile().layer(layer).name;
  return name.empty() ? text("layer ", layer) : text("layer ", layer, " ('", name, "')");
}

}  // namespace detail

[[gnu::cold]] [[nodiscard]] inline Infeasible infeasible(Workload const& w, Shortage shortage) {
  std::string s;
  switch (shortage.resource) {
    case Resource::memory:
      s = text("no plan fits: the stage of ", detail::layer_name(w, shortage.layer), " needs ",
               sized(shortage.needed),
               " of memory with one microbatch in flight, and its device has ",
               sized(shortage.available));
      break;
    case Resource::samples:
      s = text("a batch of ", counted(static_cast<long long>(shortage.available), "sample"),
               " is too small: ", shortage.needed, " are needed to give each replica a microbatch");
      break;
    case Resource::layers:
      s = text(counted(static_cast<long long>(shortage.needed), "stage"), " cannot be made of ",
               counted(static_cast<long long>(shortage.available), "layer"));
      break;
  }
  if (!shortage.change.empty()) s += "; " + shortage.change;
  return {s, std::move(shortage)};
}

/// The same, with the nearest change of the request that can be planned: recomputation, smaller
/// microbatches, both, a lighter optimizer, more memory.
/// @param possible  bool(Request const&): can that be planned?
template <class Possible>
[[gnu::cold]] [[nodiscard]] Infeasible infeasible(Workload const& w, Shortage shortage,
                                                  Possible&& possible) {
  Request const& asked = w.request();
  auto const smaller = [&](Request r) {
    int low = 0, high = w.microbatch();  // the largest possible one is in [low, high)
    while (high - low > 1) {
      int const middle = low + (high - low) / 2;
      r.microbatch = middle;
      (possible(r) ? low : high) = middle;
    }
    return low;
  };
  auto& change = shortage.change;
  if (shortage.resource == Resource::samples) {
    if (int const b = smaller(asked); b > 0)
      change = text("it can be planned with microbatches of ", counted(b, "sample"), " per device");
    return infeasible(w, std::move(shortage));
  }
  Request again = asked;
  again.recompute = true;
  if (!asked.recompute && possible(again)) {
    change = "it fits with recomputation";
  } else if (int const b = smaller(asked); b > 0) {
    change = text("it fits with microbatches of ", counted(b, "sample"), " per device");
  } else if (int const c = asked.recompute ? 0 : smaller(again); c > 0) {
    change = text("it fits with recomputation and microbatches of ", counted(c, "sample"),
                  " per device");
  } else {
    again.microbatch = 1;
    again.memory_factor = memory_factor::sgd;
    if (asked.memory_factor > again.memory_factor && possible(again)) {
      change =
          "it fits with a memory factor of 2 (SGD), recomputation and microbatches of one "
          "sample";
    } else {
      double const lack = shortage.needed - shortage.available;
      change =
          text("give the device ", sized(lack, true), " more, or cut the layer into smaller ones");
    }
  }
  return infeasible(w, std::move(shortage));
}

}  // namespace stagger::plan
