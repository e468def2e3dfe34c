// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Which modules stages were made from, to find a parameter that two of them share.

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include <stagger/core/error.hpp>

namespace stagger::torch::detail {

/// The parameters of the module from which a stage, and all copies of it, were made: known as long
/// as a pipeline may still be made of them.
class Origin {
 public:
  /// @throws Error  bad_configuration for a parameter that the module has twice, or that another
  ///                module has, too, of which a pipeline may still be made
  explicit Origin(::torch::nn::Module const& module) {
    std::lock_guard const lock(known().mutex);
    try {
      for (auto const& each : module.named_parameters()) add(each.key(), each.value(), module);
    } catch (...) {
      forget();
      throw;
    }
  }
  Origin(Origin const&) = delete;
  Origin& operator=(Origin const&) = delete;
  ~Origin() {
    std::lock_guard const lock(known().mutex);
    forget();
  }

 private:
  using Impl = c10::TensorImpl;
  struct Place {
    ::torch::nn::Module const* module;
    std::string type;
    std::string name;
    int times = 1;  // origins of the same module
  };
  struct Known {
    std::mutex mutex;
    std::unordered_map<Impl const*, Place> places;
  };
  static Known& known() {
    static Known all;
    return all;
  }

  void add(std::string const& name, at::Tensor const& parameter,
           ::torch::nn::Module const& module) {
    Impl const* const impl = parameter.unsafeGetTensorImpl();
    auto const [at, added] = known().places.try_emplace(impl, Place{&module, module.name(), name});
    Place& place = at->second;
    if (!added) {
      if (place.module != &module || place.name != name)
        raise(Errc::bad_configuration, "the parameter '", name, "' of ", module.name(),
              " is the parameter '", place.name, "' of ", place.type,
              place.module == &module ? "" : " as well",
              "; a stage trains its parameters for itself, so give each module its own");
      ++place.times;
    }
    own_.emplace_back(parameter.getIntrusivePtr());
  }
  void forget() {
    for (auto const& own : own_) {
      auto const at = known().places.find(own._unsafe_get_target());
      if (--at->second.times == 0) known().places.erase(at);
    }
    own_.clear();
  }

  std::vector<c10::weak_intrusive_ptr<Impl>> own_;  // so that no other tensor gets the address
};

}  // namespace stagger::torch::detail
