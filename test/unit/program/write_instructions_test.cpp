// SPDX-License-Identifier: Apache-2.0
#include <stagger/program/detail/write_instructions.hpp>

#include "catch.hpp"

#include <string>

#include <stagger/engine/replicas.hpp>
#include <stagger/program/describe.hpp>
#include <stagger/schedule/gpipe.hpp>

namespace write_instructions_test {

using namespace stagger;

namespace {

/// One line for each instruction: what it is; after "waits", "signal>=count"; after "gives",
/// signals.
std::string written(Program const& program, std::size_t rank) {
  std::string lines;
  std::size_t wait = 0;
  for (auto const& in : program.ranks[rank].code) {
    lines += detail::describe(in);
    if (in.waits != 0) lines += " waits";
    for (unsigned w = 0; w < in.waits; ++w, ++wait) {
      auto const& which = program.ranks[rank].waits[wait];
      lines += " " + std::to_string(which.signal) + ">=" + std::to_string(which.count);
    }
    if (in.signal_count != 0) lines += " gives";
    for (unsigned g = 0; g < in.signal_count; ++g) lines += " " + std::to_string(in.signal[g]);
    lines += "\n";
  }
  return lines;
}

Program write(schedule::Table const& table, Replicas const* replicas, bool recompute) {
  auto flow = detail::read_table(table, replicas);
  detail::connect(flow);
  auto const plan = detail::assign_slots(flow, {flow.cells.size(), 0U}, recompute);
  return detail::InstructionWriter(table, flow, plan, {}, recompute).write();
}

}  // namespace

TEST_CASE("program/InstructionWriter: values are waited for, and slots where they are used again",
          "[program]") {
  // Signals of the edge: 0 input there, 1 input free, 2 gradient there, 3 gradient free.
  // 8 and 9: handed in; 10 and 11: done.
  auto const program = write(schedule::GPipe{}.table({2, 2}), nullptr, false);
  CHECK(written(program, 0) ==
        "0F0 gives 0\n"
        "0F1 gives 0\n"
        "0B0 waits 2>=1 gives 3\n"
        "0B1 waits 2>=2 gives 3\n"
        "its last gradient gives 10\n"
        "the update waits 11>=1\n");
  CHECK(written(program, 1) ==
        "1F0 waits 0>=1\n"
        "1F1 waits 0>=2\n"
        "1B0 gives 1 2\n"
        "1B1 waits 3>=1 gives 1 2\n"
        "its last gradient gives 11\n"
        "the update waits 10>=1\n");
  CHECK(program.cells[0].dy_slots == 1);
  CHECK(program.cells[1].x_slots == 2);
}

TEST_CASE("program/InstructionWriter: F runs again right before its backward", "[program]") {
  auto const program = write(schedule::GPipe{}.table({1, 2}), nullptr, true);
  CHECK(written(program, 0) ==
        "0F0\n0F1\n0F0 (again)\n0B0\n0F1 (again)\n0B1\n"
        "its last gradient gives 5\nthe update\n");
  auto const& code = program.ranks[0].code;
  CHECK(code[0].kept == 0);  // F keeps nothing
  CHECK(code[2].kept == 1);
  CHECK(code[3].kept == 1);
}

TEST_CASE("program/InstructionWriter: where replicas differ, rows are gathered", "[program]") {
  // Cells: 0 on rank 0, 1 and 2 on ranks 1 and 2. Signals of the cuts: from 12 and from 16.
  Replicas const replicas{1, 2};
  auto const program = write(schedule::GPipe{}.table({2, 1}), &replicas, false);
  CHECK(written(program, 0) ==
        "0F0 gives 12 16\n"
        "gathering rows for 0B0 waits 14>=1 18>=1 gives 15 19\n"
        "0B0\n"
        "its last gradient gives 23\n"
        "the update waits 24>=1 25>=1\n");
  CHECK(written(program, 2) ==
        "gathering rows for 1F0 waits 16>=1 gives 17\n"
        "1F0\n"
        "gathering rows for 1F0\n"
        "1B0 gives 18\n"
        "its last gradient gives 22\n"
        "its last gradient gives 25\n"
        "the update waits 23>=1 24>=1\n");
}

}  // namespace write_instructions_test
