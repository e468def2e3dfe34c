// SPDX-License-Identifier: Apache-2.0
// csv_fuzz [COUNT [SEED]]: COUNT mutated table files (default 10^6) through reader, verifier,
// lowering and evaluation. A file is read, or refused by a stagger::Error; anything else ends the
// program. What was read must come back from its own CSV; what is proven must lower, prove again
// and evaluate.

#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/schedule/csv.hpp>
#include <stagger/schedule/dual_pipe_v.hpp>
#include <stagger/schedule/interleaved.hpp>
#include <stagger/schedule/proof/evaluate.hpp>
#include <stagger/schedule/proof/lower.hpp>
#include <stagger/schedule/proof/verify.hpp>
#include <stagger/schedule/seq_1f1b.hpp>
#include <stagger/schedule/zero_bubble_h1.hpp>

#include "driver.hpp"

namespace {

namespace schedule = stagger::schedule;

constexpr std::string_view pieces[] = {"0",
                                       "1",
                                       "7",
                                       "2147483647",
                                       "99999999999999999999",
                                       "F",
                                       "B",
                                       "I",
                                       "W",
                                       "s",
                                       "s0",
                                       "s32767",
                                       ",",
                                       ";",
                                       "(",
                                       ")",
                                       ")OVERLAP_F_B",
                                       "\n",
                                       "\r\n",
                                       "\t",
                                       " ",
                                       "-",
                                       "SEND_F",
                                       "RECV_F",
                                       "SEND_B",
                                       "RECV_B",
                                       "UNSHARD",
                                       "RESHARD",
                                       "REDUCE_GRAD",
                                       "0F0",
                                       "1B1",
                                       "(0F1;1B0)OVERLAP_F_B",
                                       "\xff",
                                       "nan",
                                       "1e308",
                                       "inf",
                                       "."};

std::vector<std::string> seeds() {
  std::vector<std::string> all{
      schedule::write_csv(schedule::Interleaved{2}.table({2, 4, 2})),
      schedule::write_csv(schedule::ZeroBubbleH1{}.table({3, 4, 1})),
      schedule::write_csv(schedule::DualPipeV{}.table({2, 4, 2})),
      schedule::write_csv(schedule::Seq1F1B{.slices = 2}.table({2, 3, 1})),
      "stage,forward_s,backward_input_s,backward_weight_s,transfer_s\n0,1,2,3,4\n1,0.5,1e-3,0,0\n",
      "0F0\n",
      ""};
  all.push_back(schedule::write_csv(schedule::lower(schedule::ZeroBubbleH1{}.table({2, 3, 1}))));
  return all;
}

fuzz::Program const program{"csv_fuzz", pieces, seeds()};

/// How far a file came: 0 refused, 1 read, 2 proven.
int table(std::string const& text) {
  schedule::Table read;
  try {
    read = schedule::read_csv(text, "fuzz");
  } catch (stagger::Error const& error) {
    if (error.code() != stagger::Errc::bad_data) program.fail(error.what(), text);
    return 0;
  }
  if (schedule::read_csv(schedule::write_csv(read)) != read)
    program.fail("its own CSV reads as another table", text);
  schedule::Fault fault = schedule::verify(read);
  if (schedule::message(fault).empty() == static_cast<bool>(fault))
    program.fail("a fault says nothing", text);
  if (fault) {
    try {
      (void)schedule::lower(read);
      (void)schedule::evaluate(read);
    } catch (stagger::Error const&) {
      return 1;  // refused, as it should be
    }
    return 1;
  }
  bool messages = false;
  for (auto const& a : read.actions) messages = messages || schedule::is_message(a.kind);
  if (!messages && schedule::verify(schedule::lower(read)))
    program.fail("the lowered table is refuted", text);
  if (!(schedule::evaluate(read).makespan_s > 0))
    program.fail("a proven table takes no time", text);
  return 2;
}

void costs(std::string const& text) {
  try {
    auto const read = schedule::read_costs_csv(text, "fuzz");
    schedule::require_costs(read, static_cast<int>(read.stages.size()));
  } catch (stagger::Error const& error) {
    if (error.code() != stagger::Errc::bad_data) program.fail(error.what(), text);
  }
}

}  // namespace

int main(int argc, char** argv) {
  long long came[3] = {0, 0, 0};
  return program.run(
      argc, argv,
      [&](std::string const& text) {
        ++came[table(text)];
        costs(text);
      },
      [&](long long count, unsigned long long seed) {
        std::printf("%lld files with seed %llu: %lld refused, %lld read, %lld proven\n", count,
                    seed, came[0], came[1], came[2]);
        return came[0] > 0 && came[1] > 0 && (came[2] > 0 || count < 1000);
      });
}
