// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A failure that must come within its deadline.

#include "catch.hpp"

#include <chrono>
#include <string>

#include <stagger/core/error.hpp>

/// Runs `body`, which must throw with this code within the deadline and a second; its words.
template <class Body> std::string fails_in_time(stagger::Errc code, double deadline_s, Body body) {
  auto const start = std::chrono::steady_clock::now();
  std::string words;
  try {
    body();
    FAIL("nothing was thrown");
  } catch (stagger::Error const& error) {
    words = error.what();
    CHECK(error.code() == code);
  }
  CHECK(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() <
        deadline_s + 1);
  return words;
}
