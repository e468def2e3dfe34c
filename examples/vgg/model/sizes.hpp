// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Sizes of an image, and the number of classes.

#include <cstddef>

namespace vgg {

inline constexpr std::ptrdiff_t side = 32;     ///< pixels of a row and of a column
inline constexpr std::ptrdiff_t colours = 3;   ///< red, green, blue
inline constexpr std::ptrdiff_t classes = 10;  ///< labels are 0 to 9

}  // namespace vgg
