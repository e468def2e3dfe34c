// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Catch2, version 2 or 3: the same test file, written in the words of version 2, works with both.

#if STAGGER_CATCH2 >= 3  // set by CMake
#include <catch2/catch_approx.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators_all.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <catch2/matchers/catch_matchers_vector.hpp>

using Catch::Approx;
namespace Catch {
using namespace Matchers;
inline auto Contains(std::string const& part) { return ContainsSubstring(part); }
}  // namespace Catch
#else
#include <catch2/catch.hpp>  // brings Approx into the global namespace by itself
#endif
