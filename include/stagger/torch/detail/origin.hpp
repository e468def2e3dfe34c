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
  };
  struct Known {
    std::mutex mutex;
    std::unordered_map<Impl const*, Place> places;
  };
  /// Never destroyed, since a stage may be as static as this is.
  static Known& known() {
    static Known& all = *new Known;
    return all;
  }

  void add(std::string const& name, at::Tensor const& parameter,
           ::torch::nn::Module const& module) {
    Impl const* const impl = parameter.unsafeGetTensorImpl();
    auto const [at, added] = known().places.try_emplace(impl, Place{&module, module.name(), name});
    Place const& place = at->second;
    if (!added && place.module == &module && place.name == name)
      raise(Errc::bad_configuration, "a stage was made from this ", place.type,
            " before, and the two would train copies that differ; give each layer a module of its "
            "own, and for another pipeline copy the stage");
    if (!added)
      raise(Errc::bad_configuration, "the parameter '", name, "' of ", module.name(),
            " is the parameter '", place.name, "' of ", place.type,
            place.module == &module ? "" : " as well",
            "; a stage trains its parameters for itself, so give each module its own");
    own_.emplace_back(parameter.getIntrusivePtr());
  }
  void forget() {
    for (auto const& own : own_) {
      known().places.erase(own._unsafe_get_target());
    }
    own_.clear();
  }

  std::vector<c10::weak_intrusive_ptr<Impl>> own_;  // so that no other tensor gets the address
};

}  // namespace stagger::torch::detail
