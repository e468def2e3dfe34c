// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The version of stagger, which CMake and Conan read from this file.

#define STAGGER_VERSION_MAJOR 0  ///< a step here may change what programs mean
#define STAGGER_VERSION_MINOR 1  ///< while MAJOR is 0, a step here may change what users write
#define STAGGER_VERSION_PATCH 0  ///< repairs only
