// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A worker that trains with others through a parameter server, by steps or by streams.

#include <memory>

#include <stagger/engine/detail/step_exchange.hpp>
#include <stagger/engine/detail/stream_exchange.hpp>
#include <stagger/engine/setup.hpp>

namespace stagger::detail {

template <class Made>
[[gnu::cold]] std::unique_ptr<Exchange> make_exchange(std::shared_ptr<ParameterLink> const& link,
                                                      Machine& machine,
                                                      StalenessModel const& staleness,
                                                      std::shared_ptr<void const> const& kept) {
  return std::make_unique<Made>(link, machine, staleness, kept);
}

}  // namespace stagger::detail
