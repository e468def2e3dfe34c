// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A step over processes beside the same step in one.

#include "catch.hpp"

#include <stagger/engine/step.hpp>

/// Takes a step of both, whose results must not differ in a bit.
template <class A, class B, class Data>
void require_same_steps(A& there, B& here, Data const& data) {
  stagger::Metrics const a = stagger::run(there.step(data));
  stagger::Metrics const b = stagger::run(here.step(data));
  REQUIRE(a.loss == b.loss);
  REQUIRE(a.terms == b.terms);
  REQUIRE(a.gradient_norm == b.gradient_norm);
  REQUIRE(there.steps() == here.steps());
}
