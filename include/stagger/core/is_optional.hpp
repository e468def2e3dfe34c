// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Whether a type is a std::optional.

#include <optional>

#include <stagger/core/requirements.hpp>

namespace stagger::detail {

template <class T> inline constexpr bool is_optional = false;
template <class T> inline constexpr bool is_optional<std::optional<T>> = true;

}  // namespace stagger::detail
