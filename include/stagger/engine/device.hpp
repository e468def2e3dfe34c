// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What a device policy is.

#include <stagger/core/requirements.hpp>

#include <concepts>

namespace stagger {

/// Marks a device policy: `using policy_tag = stagger::DeviceTag;`.
struct DeviceTag {};

/// Where the ranks run: host threads, a virtual clock, streams. It names its back end and says how
/// ranks are spread.
template <class D>
concept DevicePolicy =
    std::copyable<D> && std::same_as<typename D::policy_tag, DeviceTag> && requires {
  typename D::Backend;
};

}  // namespace stagger
