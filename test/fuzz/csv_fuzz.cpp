// SPDX-License-Identifier: Apache-2.0
// csv_fuzz [COUNT [SEED]]: COUNT mutated table files (default 10^6) through reader, verifier,
// lowering and evaluation. A file is read, or refused by a stagger::Error; anything else ends the
// program. What was read must come back from its own CSV; what is proven must lower, prove again
// and evaluate.

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/schedule/costs_csv.hpp>
#include <stagger/schedule/csv.hpp>
#include <stagger/schedule/dual_pipe_v.hpp>
#include <stagger/schedule/evaluate.hpp>
#include <stagger/schedule/interleaved.hpp>
#include <stagger/schedule/lower.hpp>
#include <stagger/schedule/seq_1f1b.hpp>
#include <stagger/schedule/verify.hpp>
#include <stagger/schedule/zero_bubble_h1.hpp>

namespace {

namespace schedule = stagger::schedule;
using Random = std::mt19937_64;

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

std::string mutated(std::string text, Random& random) {
  auto const below = [&](std::size_t n) { return n == 0 ? 0 : random() % n; };
  for (std::size_t left = 1 + below(4); left > 0; --left) {
    std::size_t const at = below(text.size() + 1);
    std::size_t const length = below(1 + std::min<std::size_t>(text.size() - at, 12));
    switch (below(6)) {
      case 0:
        text.insert(at, pieces[below(std::size(pieces))]);
        break;
      case 1:
        text.replace(at, length, pieces[below(std::size(pieces))]);
        break;
      case 2:
        text.erase(at, length);
        break;
      case 3:
        text.insert(below(text.size() + 1), text.substr(at, length));
        break;
      case 4:
        if (at < text.size()) text[at] = static_cast<char>(random());
        break;
      default:
        text.resize(at);
    }
  }
  return text;
}

/// Ends the program with the file that showed the fault.
[[noreturn]] void fail(char const* what, std::string const& text) {
  std::fprintf(stderr, "csv_fuzz: %s; the file is:\n%s\n", what, text.c_str());
  std::exit(1);
}

/// How far a file came: 0 refused, 1 read, 2 proven.
int table(std::string const& text) {
  schedule::Table read;
  try {
    read = schedule::read_csv(text, "fuzz");
  } catch (stagger::Error const& error) {
    if (error.code() != stagger::Errc::bad_data) fail(error.what(), text);
    return 0;
  }
  schedule::Table const again =
      schedule::read_csv(schedule::write_csv(read).append(read.ranks() == 0 ? "\n" : ""));
  if (read.ranks() > 0 && !(again == read)) fail("its own CSV reads as another table", text);
  schedule::Fault fault = schedule::verify(read);
  if (schedule::message(fault).empty() == static_cast<bool>(fault))
    fail("a fault says nothing", text);
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
    fail("the lowered table is refuted", text);
  if (!(schedule::evaluate(read).makespan_s > 0)) fail("a proven table takes no time", text);
  return 2;
}

void costs(std::string const& text) {
  try {
    auto const read = schedule::read_costs_csv(text, "fuzz");
    schedule::require_costs(read, static_cast<int>(read.stages.size()));
  } catch (stagger::Error const& error) {
    if (error.code() != stagger::Errc::bad_data) fail(error.what(), text);
  }
}

}  // namespace

int main(int argc, char** argv) {
  long long const count = argc > 1 ? std::atoll(argv[1]) : 1000000;
  unsigned long long const seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  if (count < 1) {
    std::fputs("csv_fuzz: give a COUNT of 1 or more\n", stderr);
    return 2;
  }
  Random random(seed);
  auto const from = seeds();
  long long came[3] = {0, 0, 0};
  std::string text;
  try {
    for (long long i = 0; i < count; ++i) {
      text = mutated(from[random() % from.size()], random);
      ++came[table(text)];
      costs(text);
    }
  } catch (std::exception const& error) {
    fail(error.what(), text);
  }
  std::printf("%lld files with seed %llu: %lld refused, %lld read, %lld proven\n", count, seed,
              came[0], came[1], came[2]);
  return came[0] > 0 && came[1] > 0 && (came[2] > 0 || count < 1000) ? 0 : 1;
}
