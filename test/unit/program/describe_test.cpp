// SPDX-License-Identifier: Apache-2.0
#include <stagger/program/describe.hpp>

#include "catch.hpp"

#include <string>

namespace describe_test {
namespace {

namespace sg = stagger;
using sg::Op;

std::string text_of(Op op) {
  sg::Instruction in;
  in.op = op;
  in.stage = 3;
  in.microbatch = 14;
  return sg::detail::describe(in);
}

}  // namespace

TEST_CASE("program/describe: each opcode has a text that names what belongs to it", "[program]") {
  CHECK(text_of(Op::forward) == "3F14");
  CHECK(text_of(Op::backward) == "3B14");
  CHECK(text_of(Op::backward_input) == "3I14");
  CHECK(text_of(Op::backward_weight) == "3W14");
  CHECK(text_of(Op::recompute) == "3F14 (again)");
  CHECK(text_of(Op::hand_in) == "its last gradient");
  CHECK(text_of(Op::finish) == "its last gradient");
  CHECK(text_of(Op::update) == "the update");
  CHECK(text_of(Op::apply) == "the update");
  CHECK(text_of(Op::push) == "3PUSH14");
  CHECK(text_of(Op::pull) == "3PULL14");
  CHECK(text_of(Op::gather_input) == "gathering rows for 3F14");
  CHECK(text_of(Op::gather_gradient) == "gathering rows for 3B14");
  CHECK(text_of(Op::gather_target) == "gathering rows for 3F14");
  CHECK(text_of(Op::pass) == "handing on stage 3's rows of 14");
  CHECK(text_of(Op::backward_part) == "3B14");
  CHECK(text_of(Op::backward_weight_part) == "3W14");
  CHECK(text_of(Op::reduce) == "the sum of stage 3's gradients");
}

}  // namespace describe_test
