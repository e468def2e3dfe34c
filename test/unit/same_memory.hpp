// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Comparison of the memory that was predicted with the memory in use.

#include <stagger/engine/memory.hpp>

#include "catch.hpp"

inline void check_same_memory(stagger::Memory const& predicted, stagger::Memory const& used) {
  CHECK(predicted.parameters == used.parameters);
  CHECK(predicted.optimizer_state == used.optimizer_state);
  CHECK(predicted.activations == used.activations);
  CHECK(predicted.gradients == used.gradients);
  CHECK(predicted.scratch == used.scratch);
}
